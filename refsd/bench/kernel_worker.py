"""Run one contender of the kernel benchmark: python -m refsd.bench.kernel_worker CONTENDER PLACE THREADS.

PLACE is the path of the contender's library. The first line of JSON on stdout has the contender's versions, or the
reason why it is absent. Then each line of JSON on stdin is a command, and gets one line of JSON as its answer:

    {"ready": [row, column]}   make the inputs, call twice         {"facts": {...}, "seconds": s} or {"absent": why}
    {"turn": [column, n]}      n calls, each with cold caches      {"seconds": [...]}
    {"save": [column, file]}   write the last result as .npy       {"saved": true if there is a result}
    {"error": [row, files]}    relative L2 error of each file      {"errors": [...]}
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from refsd.bench.families import ROWS
from refsd.bench.row import Absent, Ready
from refsd.bench.worker import refsd_setup
from refsd.numerics.errors import BadInput

# Bytes to write before each call, to evict the inputs from all caches: twice a large desktop CPU's cache.
FLUSHED = 64 << 20


def refsd_tools(place: str, threads: int) -> tuple[Any, dict[str, Any]]:
    return None, refsd_setup()


def torch_tools(place: str, threads: int) -> tuple[Any, dict[str, Any]]:
    try:
        import torch
    except ImportError:
        raise Absent("torch is not installed") from None
    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    capability = torch.backends.cpu.get_cpu_capability()
    return torch, {"version": torch.__version__, "threads": torch.get_num_threads(), "cpu": capability}


def ggml_tools(place: str, threads: int) -> tuple[Any, dict[str, Any]]:
    if not place:
        raise Absent("no library given")
    from refsd.bench.ggml_graphs import GgmlTools

    try:
        tools = GgmlTools(Path(place), threads)
    except BadInput as error:
        raise Absent(str(error)) from None
    return tools, {"version": tools.libggml.version("cpu"), "threads": threads}


def gguf_tools(place: str, threads: int) -> tuple[Any, dict[str, Any]]:
    import importlib.metadata

    import gguf

    np.seterr(all="ignore")  # random blocks may have infinite scales
    return gguf, {"version": importlib.metadata.version("gguf"), "threads": "NumPy's"}


TOOLS: dict[str, Callable[[str, int], tuple[Any, dict[str, Any]]]] = {
    "refsd": refsd_tools,
    "refsd-preset": refsd_tools,
    "torch": torch_tools,
    "ggml": ggml_tools,
    "ggml-llamafile": ggml_tools,
    "gguf-py": gguf_tools,
}


class Bench:
    """Execute the commands listed at the top of this file, one method each, for one row at a time."""

    def __init__(self, tools: Any, clock: Callable[[], float] = time.perf_counter):
        self._tools, self._clock = tools, clock
        self._held: dict[str, Ready] = {}
        self._row, self._column = "", ""
        self._flush = np.zeros(FLUSHED, np.uint8)

    def ready(self, row: str, column: str) -> dict[str, Any]:
        if row != self._row:
            self._row, self._held = row, {}
        try:
            ready = ROWS[row].columns[column].ready(self._tools)
            ready.call()  # warm-up: compile, load code, allocate memory
            begun = self._clock()
            ready.call()
            seconds = self._clock() - begun
        except (Absent, ImportError, AttributeError, MemoryError, RuntimeError) as error:
            return {"absent": str(error) or type(error).__name__}
        self._held[column] = ready
        return {"facts": dict(ready.facts), "seconds": seconds}

    def turn(self, column: str, calls: int) -> dict[str, Any]:
        seconds = []
        for _ in range(calls):
            self._flush += 1
            begun = self._clock()
            self._held[column].call()
            seconds.append(self._clock() - begun)
        return {"seconds": seconds}

    def save(self, column: str, file: str) -> dict[str, Any]:
        result = self._held[column].result
        if result is None:
            return {"saved": False}
        np.save(file, result())
        return {"saved": True}

    def error(self, row: str, files: list[str]) -> dict[str, Any]:
        truth = ROWS[row].truth
        assert truth is not None
        expected = truth()
        norm = np.linalg.norm(expected)
        return {
            "errors": [
                float(np.linalg.norm(np.load(file).reshape(expected.shape) - expected) / norm) for file in files
            ]
        }


def main(contender: str, place: str, threads: str) -> None:
    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), flush=True)

    try:
        tools, setup = TOOLS[contender](place, int(threads))
    except Absent as why:
        say({"absent": str(why)})
        return
    say(setup)
    bench = Bench(tools)
    for line in sys.stdin:
        ((command, arguments),) = json.loads(line).items()
        say(getattr(bench, command)(*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
