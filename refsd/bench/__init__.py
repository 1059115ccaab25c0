"""Measure time and peak memory of refsd, its peers and the machine's limit, each peer interleaved with refsd.

Each contender runs in a separate process (worker.py), so that its peak memory can be measured. refsd's stays, and
takes turns with one peer after the other, A B A B A C A C, so that other load on the machine affects both and two
processes at most hold the weights. The fastest turn counts.
"""

import fnmatch
import json
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from refsd.bench.environment import environment
from refsd.bench.process import Process
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import available

# In the order of their turns.
CONTENDERS = (
    "refsd",
    "limit",
    "torch",
    "torch channels_last",
    "torch compile",
    "onnxruntime",
    "openvino",
    "sd-cli",
    "sd-cli llamafile",
)
USUAL = ("refsd", "limit", "torch", "onnxruntime", "openvino", "sd-cli")


class BenchRequest(NamedTuple):
    """What to measure.

    what:   "unet" (a step at 64x64 latents), "vae" (a decode at 256x256 pixels) or "diffusion" (a step of any
            denoiser)
    model:  a checkpoint; SD 1.x for "unet" and "vae"
    sd_cli: the program; None: $REFSD_SD_CLI, then PATH
    runs:   turns of each contender
    parts:  "diffusion": sd-cli's flag -> file of a model part
    side:   "diffusion": side of the square picture, in pixels
    tokens: "diffusion": number of text tokens; 0: the family's usual number
    threads:    threads of every contender
    avx2:       True keeps every contender that can be kept from AVX-512
    contenders: globs of CONTENDERS; refsd always takes part
    llamafile:  an sd-cli built with GGML_LLAMAFILE; None: $REFSD_SD_CLI_LLAMAFILE
    """

    what: str
    model: Path | None
    sd_cli: Path | None
    runs: int
    parts: Mapping[str, Path] = {}
    side: int = 256
    tokens: int = 0
    threads: int = 2
    avx2: bool = False
    contenders: tuple[str, ...] = USUAL
    llamafile: Path | None = None


class Entry(NamedTuple):
    """One contender's result.

    seconds: row -> time of each turn
    peak:    peak resident memory, in bytes
    setup:   versions, threads, BLAS
    absent:  the reason why the contender did not run; "" if it ran
    """

    seconds: dict[str, list[float]]
    peak: int
    setup: dict[str, Any]
    absent: str = ""


class _Worker(Process):
    """A contender's process (worker.py). For each line it takes one turn."""

    def __init__(self, contender: str, request: BenchRequest, sd_cli: str | None):
        self.contender = contender
        parts = {flag: str(file) for flag, file in request.parts.items()}
        numbers = {"side": request.side, "tokens": request.tokens, "threads": request.threads}
        more = json.dumps({"parts": parts, **numbers, "avx2": request.avx2})
        args = [contender, request.what, str(request.model or ""), sd_cli or "", more]
        super().__init__("worker", args, environment(request.threads, avx2=request.avx2))

    def answer(self) -> dict[str, Any]:
        answer = super().answer()
        if isinstance(answer, int):
            killed = answer == -signal.SIGKILL
            return {"absent": "killed, as Linux does for want of memory" if killed else f"ended with {answer}"}
        return answer

    def turn(self) -> dict[str, Any]:
        self.send()
        return self.answer()


def bench(request: BenchRequest, progress=lambda what: None) -> dict[str, Entry]:
    """Run every installed contender. -> contender -> Entry. Raises BadInput for a missing or unusable file."""
    for path in (request.model, request.sd_cli, request.llamafile, *request.parts.values()):
        if path is not None and not path.exists():
            raise BadInput(f"{path}: no such file")
    own = str(request.sd_cli) if request.sd_cli else os.environ.get("REFSD_SD_CLI") or shutil.which("sd-cli")
    llamafile = str(request.llamafile) if request.llamafile else os.environ.get("REFSD_SD_CLI_LLAMAFILE")
    programs = {"sd-cli": own, "sd-cli llamafile": llamafile}
    entries: dict[str, Entry] = {}

    def started(contender: str) -> _Worker:
        progress(f"{contender}: loading and warming up")
        worker = _Worker(contender, request, programs.get(contender))
        setup = worker.answer()
        if "bad input" in setup:
            worker.close()
            raise BadInput(setup["bad input"])
        entries[contender] = Entry({}, 0, setup, setup.pop("absent", ""))
        return worker

    def turn(worker: _Worker, of: str) -> None:
        entry = entries[worker.contender]
        if entry.absent:
            return
        progress(f"{worker.contender}: {of}")
        answer = worker.turn()
        if "absent" in answer:
            entries[worker.contender] = entry._replace(absent=answer["absent"])
            return
        for row, seconds in answer["seconds"].items():
            entry.seconds.setdefault(row, []).append(seconds)
        entries[worker.contender] = entry._replace(peak=answer["peak"])

    chosen = _chosen(request.contenders)
    with closing(started(chosen[0])) as refsd:
        turn(refsd, "a turn for its memory")
        for contender in chosen[1:]:
            free, needed = available(), entries[chosen[0]].peak
            if free < needed:
                why = f"{free / 2**30:.1f} GiB of memory are free, and refsd itself took {needed / 2**30:.1f}"
                entries[contender] = Entry({}, 0, {}, why)
                continue
            with closing(started(contender)) as peer:
                for n in range(0 if entries[contender].absent else request.runs):
                    for worker in (refsd, peer):
                        turn(worker, f"turn {n + 1} of {request.runs}, beside {contender}")
        for n in range(request.runs - 1 if len(chosen) == 1 else 0):
            turn(refsd, f"turn {n + 2} of {request.runs}")
    return entries


def _chosen(globs: tuple[str, ...]) -> list[str]:
    for glob in globs:
        if not fnmatch.filter(CONTENDERS, glob):
            raise BadInput(f"--contender {glob}: there are {', '.join(CONTENDERS)}")
    return [name for name in CONTENDERS if name == "refsd" or any(fnmatch.fnmatch(name, glob) for glob in globs)]


def best(entries: dict[str, Entry]) -> dict[str, dict[str, float]]:
    """Find the fastest turns. -> row -> contender -> seconds"""
    rows: dict[str, dict[str, float]] = {}
    for contender, entry in entries.items():
        for row, seconds in entry.seconds.items():
            rows.setdefault(row, {})[contender] = min(seconds)
    return rows
