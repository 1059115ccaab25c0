"""A contender's process: for each line on its stdin it prints one line of JSON."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


class Process:
    """Run `python -m refsd.bench.MODULE` with arguments, in an environment; the first line is its setup."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]):
        # -P: otherwise diffusers would import the folder `kernels` of a checkout instead of Hugging Face's package.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"refsd.bench.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def answer(self) -> dict[str, Any] | int:
        """Return the next line that it prints, or the exit code of a process that has ended."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        return json.loads(line) if line else self._process.wait()

    def send(self, line: str = "") -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
