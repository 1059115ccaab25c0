"""Format the kernel benchmark as tables, one for each family, with the columns that suit the family."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from rich.table import Table

from refsd.bench.environment import PRESETS, presets
from refsd.bench.families import ROWS
from refsd.bench.kernels import Cell, Result

Cells = Mapping[str, Cell]
Rows = Mapping[str, Cells]


def geometric_mean(values: Iterable[float]) -> float:
    """Compute exp(mean(log(values))); nan for no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def ratios(rows: Rows, column: str, to: str) -> list[float]:
    """Divide the time of `column` by that of `to`, in each row that has both."""
    pairs = [(cells.get(column), cells.get(to)) for cells in rows.values()]
    return [a.best / b.best for a, b in pairs if a and b and not a.absent and not b.absent]


def tables(result: Result) -> Iterator[Table]:
    families: dict[str, dict[str, Cells]] = {}
    for name, cells in result.cells.items():
        families.setdefault(name.split("/")[0], {})[name] = cells
    for family, rows in families.items():
        yield _VIEWS.get(family, _against_peers)(family, rows)


def _named(name: str) -> str:
    return name.split("/", 1)[1]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _table(
    title: str, rows: Rows, text: Callable[[str, Cell], str], base: str = "", named=_named, algorithm=False
) -> Table:
    """Fill a table with a line for each row.

    text:      row's name, a cell -> what is shown of it
    base:      column to whose time the line of geometric means relates the others; "": no such line
    named:     row's name -> the same in the table
    algorithm: True for a last column with the algorithm that refsd has chosen
    """
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    table = Table(title=title)
    for column in ("", *columns, *(["algorithm"] if algorithm else [])):
        table.add_column(column, justify="right" if column else "left")
    for name, cells in rows.items():
        shown = [cells.get(column) for column in columns]
        last = [cells["refsd"].facts.get("algorithm", "")] if algorithm else []
        table.add_row(named(name), *("-" if c is None or c.absent else text(name, c) for c in shown), *last)
    if base:
        means = [f"{geometric_mean(found):.2f}x" if (found := ratios(rows, c, base)) else "-" for c in columns]
        means[columns.index(base)] = ""
        table.add_section()
        table.add_row("geometric mean", *means)
    return table


def _ratio(cell: Cell, to: Cell) -> list[str]:
    return [] if cell is to or to.absent else [f"{cell.best / to.best:.2f}x"]


def _against_peers(family: str, rows: Rows) -> Table:
    """Show each contender's time, its ratio to refsd's time, and its relative L2 error against float64."""

    def text(name: str, cell: Cell) -> str:
        error = [] if cell.error is None else [f"{cell.error:.1e}"]
        return "  ".join([milliseconds(cell.best), *_ratio(cell, rows[name]["refsd"]), *error])

    title = f"{family}: time, ratio to refsd's, relative L2 against float64"
    return _table(title, rows, text, "refsd", algorithm=True)


def _against_copy(family: str, rows: Rows) -> Table:
    """Show each contender's time and its ratio to the time of a memory copy."""
    text = lambda name, cell: "  ".join([milliseconds(cell.best), *_ratio(cell, rows[name]["copy"])])
    return _table(f"{family}: time, and its ratio to the copy's", rows, text, "copy")


def _throughput(family: str, rows: Rows) -> Table:
    """Show each contender's output in GB/s of float32, and its time divided by refsd's."""

    def text(name: str, cell: Cell) -> str:
        return "  ".join([f"{ROWS[name].bytes / cell.best / 1e9:.1f}", *_ratio(cell, rows[name]["refsd"])])

    return _table(f"{family}: GB/s of float32 made, and refsd's ratio to it", rows, text, "refsd")


def _with_memory(family: str, rows: Rows) -> Table:
    """Show time, and peak memory beyond the layer's result in MiB and as a share of the delta's size."""
    delta = lambda name: ROWS[name].bytes / 2**20

    def text(name: str, cell: Cell) -> str:
        extra = cell.facts.get("extra MiB")
        share = "" if extra is None else f"  {extra:.2f} MiB, {extra / delta(name):.3g}"
        return milliseconds(cell.best) + share

    named = lambda name: f"{_named(name)} ({delta(name):.1f} MiB)"
    return _table(f"{family}: time; extra memory, as a share of the delta's", rows, text, named=named)


_VIEWS: dict[str, Callable[[str, Rows], Table]] = {
    "memory-bound": _against_copy,
    "dequantize": _throughput,
    "lokr": _with_memory,
}


def notes(result: Result) -> Iterator[str]:
    """List each contender's versions, absent contenders and cells with reasons, and OpenBLAS presets."""
    for name, setup in result.setups.items():
        yield f"{name}: " + ", ".join(f"{key} {value}" for key, value in setup.items())
    gone = {setup["absent"] for setup in result.setups.values() if "absent" in setup}
    for name, cells in result.cells.items():
        for column, cell in cells.items():
            if cell.absent and cell.absent not in gone:
                yield f"{name}: no {column}: {cell.absent}"
    if found := presets():
        set_to = ", ".join(f"{name}={value}" for name, value in found.items())
        yield f"{set_to} was preset, and taken out for every contender; --presets measures refsd with it too"
    yield "caches are cold before every call; memory that a call frees is kept for the next"
    if not found:
        yield f"none of {', '.join(PRESETS)} was preset"
