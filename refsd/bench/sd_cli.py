"""Read from sd-cli's log how long a stage takes."""

import subprocess
import tempfile
from collections.abc import Sequence

from refsd.engines.sdcpp.program import last_words, timings
from refsd.golden.engine import EngineFailure


def seconds_of(stage: str, program: str, files: Sequence[str], side: int, threads: int = 0) -> float:
    """Draw one picture of side x side pixels in one step; end the program once the log reports the stage's time.

    files:   the options that name the model
    threads: 0 leaves them to sd-cli

    Raises EngineFailure with the last log lines if the program ends before the stage.
    """
    with tempfile.TemporaryDirectory() as folder:
        args = [*files, "-p", "a cat", "--steps", "1", "--cfg-scale", "1", "-v", "-o", f"{folder}/cat.png"]
        process = subprocess.Popen(
            [program, *args, "-W", str(side), "-H", str(side), *(["-t", str(threads)] if threads else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        log = ""
        assert process.stdout
        try:
            for line in process.stdout:
                log += line
                if stage in timings(line):
                    return timings(line)[stage]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    raise EngineFailure(f"sd-cli did not finish its {stage}: {last_words(log)}")
