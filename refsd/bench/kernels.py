"""Time single operations of refsd, torch, ggml and gguf-py, each contender in a separate process.

Within a row the contenders take turns, A B C A B C, so that other load on the machine affects all of them. The
fastest call counts. Caches are cold before every call.
"""

import fnmatch
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.bench.environment import environment
from refsd.bench.families import ROWS
from refsd.bench.process import Process
from refsd.bench.row import Row
from refsd.numerics.errors import BadInput

# A turn makes as many calls as fit into this time in seconds, at most three.
_TURN = 0.06
# A contender that needs longer than this for one call is measured by that single call, in seconds.
_SLOW = 2.0
# Pause in seconds before a turn, in which the previous contender's threads stop spinning.
_REST = 0.005


class KernelRequest(NamedTuple):
    """What to measure.

    only:      globs that select rows by name
    places:    contender -> path of its library
    threads:   threads of every contender
    turns:     turns of each contender in a row
    presets:   also measure refsd with the environment's OpenBLAS presets
    """

    only: tuple[str, ...] = ("*",)
    places: Mapping[str, str] = {}
    threads: int = 2
    turns: int = 4
    presets: bool = False


class Cell(NamedTuple):
    """One contender's measurement in one row.

    seconds: time of every call
    facts:   further facts for the table, such as the chosen algorithm
    error:   relative L2 error against the float64 answer; None if the row has no such answer
    absent:  the reason why there is no measurement; "" if there is one
    """

    seconds: list[float]
    facts: dict[str, Any]
    error: float | None = None
    absent: str = ""

    @property
    def best(self) -> float:
        return min(self.seconds)


class Worker(Process):
    """A contender's process (kernel_worker.py): each line of JSON is answered by a line of JSON."""

    def __init__(self, contender: str, request: KernelRequest):
        args = [contender, request.places.get(contender, ""), str(request.threads)]
        super().__init__("kernel_worker", args, environment(request.threads, contender == "refsd-preset"))
        setup = self.answer()
        self.setup = {"absent": f"the process ended with {setup}"} if isinstance(setup, int) else setup
        self.absent: str = self.setup.pop("absent", "")

    def ask(self, command: str, *arguments: Any) -> dict[str, Any]:
        if self.absent:
            return {"absent": self.absent}
        self.send(json.dumps({command: arguments}))
        answer = self.answer()
        if isinstance(answer, int):
            self.absent = f"the process ended with {answer}"
            return {"absent": self.absent}
        return answer


class Result(NamedTuple):
    """The measurements of all rows.

    cells:  row -> column -> Cell
    setups: contender -> its versions and threads, or {"absent": reason}
    """

    cells: dict[str, dict[str, Cell]]
    setups: dict[str, dict[str, Any]]


def bench(request: KernelRequest, progress: Callable[[str], None] = lambda what: None, start=Worker) -> Result:
    """Measure every row that `request.only` selects. Raises BadInput if it selects none."""
    rows = [row for name, row in ROWS.items() if any(fnmatch.fnmatch(name, glob) for glob in request.only)]
    if not rows:
        families = sorted({row.family for row in ROWS.values()})
        raise BadInput(
            f"--only {' '.join(request.only)}: no row; there are {', '.join(f'{f}/*' for f in families)}"
        )
    workers: dict[str, Any] = {}

    def worker(contender: str):
        if contender not in workers:
            progress(f"{contender}: starting")
            workers[contender] = start(contender, request)
        return workers[contender]

    try:
        cells = {row.name: _measure(row, request, worker, progress) for row in rows}
        setups = {name: {"absent": w.absent} if w.absent else w.setup for name, w in workers.items()}
        return Result(cells, setups)
    finally:
        for one in workers.values():
            one.close()


def _measure(row: Row, request: KernelRequest, worker, progress) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    runs: list[tuple[str, Any, int]] = []  # label, worker, calls in a turn
    shown: dict[str, tuple[str, tuple[str, ...]]] = {name: (name, c.processes) for name, c in row.columns.items()}
    if request.presets:
        shown["refsd, OpenBLAS preset"] = (next(iter(row.columns)), ("refsd-preset",))
    for label, (column, processes) in shown.items():
        progress(f"{row.name}: {label} warms up")
        answer: dict[str, Any] = {}
        for contender in processes:
            answer = worker(contender).ask("ready", row.name, column)
            if "absent" not in answer:
                calls = max(1, min(3, int(_TURN / answer["seconds"])))
                runs.append((label, worker(contender), calls if answer["seconds"] < _SLOW else 0))
                break
        slow = [answer["seconds"]] if answer.get("seconds", 0) >= _SLOW else []
        cells[label] = Cell(slow, answer.get("facts", {}), absent=answer.get("absent", ""))
    for turn in range(request.turns):
        for label, of, calls in runs:
            if not calls:
                continue
            progress(f"{row.name}: turn {turn + 1} of {request.turns}, {label}")
            time.sleep(_REST)
            cells[label].seconds.extend(of.ask("turn", shown[label][0], calls).get("seconds", []))
    if row.truth:
        progress(f"{row.name}: the answers, compared")
        _compare(row, [(label, shown[label][0], of) for label, of, _ in runs], cells, worker("refsd"))
    return {label: _judged(cell) for label, cell in cells.items()}


def _judged(cell: Cell) -> Cell:
    """Mark a contender that died before its first measurement as absent."""
    return cell if cell.seconds or cell.absent else cell._replace(absent="the process ended")


def _compare(row: Row, runs: list[tuple[str, str, Any]], cells: dict[str, Cell], refsd) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for number, (label, column, of) in enumerate(runs):
            file = str(Path(folder) / f"{number}.npy")
            if of.ask("save", column, file).get("saved"):
                files[label] = file
        errors = refsd.ask("error", row.name, list(files.values())).get("errors", [])
        for label, error in zip(files, errors, strict=False):
            cells[label] = cells[label]._replace(error=error)
