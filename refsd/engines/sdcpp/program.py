"""Run sd-cli: call it, parse its log, and read what the tap recorded."""

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from refsd.engines.ggml.engine import GgmlLibrary
from refsd.engines.relocation import environment
from refsd.engines.sdcpp.device import check, choice
from refsd.engines.sdcpp.tap import Feed, Graph, read
from refsd.engines.sdcpp.tap import environment as tap
from refsd.engines.supervised import MAX_FILE, Supervised, ending
from refsd.golden.engine import EngineFailure
from refsd.numerics.printable import printable

# stage, as reports name it -> pattern of the log line with the stage's seconds
_TIMINGS = {
    "load": r"loading tensors completed, taking ([\d.]+)s",
    "vae-encoder": r"encode_first_stage completed, taking ([\d.]+)s",
    "clip": r"get_learned_condition completed, taking ([\d.]+)s",
    "sampling": r"\] .*- sampling completed, taking ([\d.]+)s",
    "vae-decoder": r"decode_first_stage completed, taking ([\d.]+)s",
    "total": r"generate_image completed in ([\d.]+)s",
}


_MAX_LOG = 256 << 20
_SHORT = 60.0  # seconds for --version and the like


class Finished(NamedTuple):
    """A finished run. seconds: stage -> seconds by the program's log (_TIMINGS); graphs: empty without the tap"""

    log: str
    seconds: dict[str, float]
    graphs: list[Graph]


class Program:
    """The program sd-cli at a path. Raises EngineFailure if it cannot be started.

    device: as ggml calls it. The program is told to take it, and a tapped run fails unless every graph was computed
            there. Without one it computes where it likes
    """

    def __init__(self, path: Path, timeout: float = 1800.0, device: str = ""):
        self.path = path.absolute()
        self.timeout = timeout
        self.device = device
        self._supervised = Supervised()
        version = version_in(self._start(["--version"], {}, _SHORT))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.version = f"{version} (sha256 {digest[:12]})"

    @functools.cached_property
    def shares_ggml(self) -> bool:
        """True if the program links libggml-base dynamically; only then can it be tapped."""
        return "libggml-base" in self._linked

    @functools.cached_property
    def ggml_folder(self) -> Path:
        """The folder of the libggml-base that the program loads."""
        found = re.search(r"libggml-base\S* => (/\S+)", self._linked)
        return Path(found[1]).parent if found else self.path.parent

    @functools.cached_property
    def _linked(self) -> str:
        return self._log([], {**environment(), "LD_TRACE_LOADED_OBJECTS": "1"}, _SHORT)[1]

    @functools.cached_property
    def ggml(self) -> GgmlLibrary:
        """The program's ggml on the program's device. Raises EngineFailure; BadInput if it has no such device."""
        return GgmlLibrary(self.ggml_folder, 1, _SHORT, self.device)

    @functools.cached_property
    def _choice(self) -> tuple[list[str], dict[str, str]]:
        if not self.device:
            return [], {}
        return choice(self.device, self._log(["--help"], environment(), _SHORT)[1])

    def run(self, args: Iterable[str]) -> Finished:
        """Run the program and parse its log. Raises EngineFailure with the last log lines."""
        log = self._start(["-v", *args], {})
        return Finished(log, timings(log), [])

    def run_tapped(
        self,
        args: Iterable[str],
        feeds: Iterable[Feed] = (),
        nodes="",
        ops="",
        stop: tuple[int, str] | None = None,
        skip: Iterable[str] = (),
        weights: bool = False,
    ) -> Finished:
        """Run the program with the tap; refsd.engines.sdcpp.tap.environment explains the arguments.

        Waiting OpenMP threads sleep instead of spinning, which is cheaper on a shared machine. The timings are
        therefore slower than the program's best.
        """
        with tempfile.TemporaryDirectory(prefix="refsd-tap-") as folder:
            chosen, variables = self._choice
            tapped = tap(Path(folder), feeds, nodes, ops, stop, skip, weights)
            log = self._start(["-v", *chosen, *args], {"OMP_WAIT_POLICY": "passive", **variables, **tapped})
            graphs = read(Path(folder))
            if self.device:
                check(graphs, self.device, skip)
            return Finished(log, timings(log), graphs)

    def _start(self, args: list[str], more: dict[str, str], timeout: float | None = None) -> str:
        code, log = self._log(args, {**environment(), **more}, timeout or self.timeout)
        if code:
            raise EngineFailure(f"{self.path.name} {ending(code)}: {last_words(log)}")
        return log

    def _log(self, args: list[str], variables: dict[str, str], timeout: float) -> tuple[int, str]:
        """Run the program in an empty folder. -> its exit code, and everything it printed"""
        with tempfile.TemporaryDirectory(prefix="refsd-sdcpp-") as folder, tempfile.TemporaryFile() as log:

            def look() -> None:
                if os.fstat(log.fileno()).st_size > _MAX_LOG:
                    raise EngineFailure(f"{self.path.name} printed more than {_MAX_LOG >> 20} MiB")

            self._supervised.start([str(self.path), *args], Path(folder), variables, MAX_FILE, log)
            try:
                code = self._supervised.wait(timeout, look)
            finally:
                self._supervised.end()
            look()
            log.seek(0)
            return code, log.read().decode(errors="replace")


def version_in(log: str) -> str:
    """Find the version and commit that --version prints. Raises EngineFailure if the program is not sd-cli."""
    found = re.search(r"^stable-diffusion\.cpp version (.+)$", log, re.MULTILINE)
    if not found:
        raise EngineFailure(f"this is no sd-cli; asked for its version it said: {last_words(log)}")
    return printable(found[1].strip(), 80)


def timings(log: str) -> dict[str, float]:
    """Read the seconds of each stage from the log, summed over a stage's repetitions."""
    found = {stage: [float(s) for s in re.findall(pattern, log)] for stage, pattern in _TIMINGS.items()}
    return {stage: sum(seconds) for stage, seconds in found.items() if seconds}


def last_words(log: str, lines: int = 3) -> str:
    """Join the last lines of the log, without progress bars."""
    words = [line.split("\r")[-1].strip() for line in log.splitlines()]
    return " | ".join([line for line in words if line and "|" not in line][-lines:]) or "nothing"
