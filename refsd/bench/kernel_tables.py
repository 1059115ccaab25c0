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


def _table(title: str, rows: Rows, extra: tuple[str, ...] = ()) -> tuple[Table, list[str]]:
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    table = Table(title=title)
    for column in ("", *columns, *extra):
        table.add_column(column, justify="right" if column else "left")
    return table, columns


def _named(name: str) -> str:
    return name.split("/", 1)[1]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _cell(cell: Cell | None, text: Callable[[Cell], str]) -> str:
    return "-" if cell is None or cell.absent else text(cell)


def _against_peers(family: str, rows: Rows) -> Table:
    """Show each contender's time, its ratio to refsd's time, and its relative L2 error against float64."""
    table, columns = _table(f"{family}: time, ratio to refsd's, relative L2 against float64", rows, ("algorithm",))
    for name, cells in rows.items():
        own = cells["refsd"]

        def text(cell: Cell, own=own) -> str:
            parts = [milliseconds(cell.best)]
            if cell is not own and not own.absent:
                parts.append(f"{cell.best / own.best:.2f}x")
            if cell.error is not None:
                parts.append(f"{cell.error:.1e}")
            return "  ".join(parts)

        shown = (_cell(cells.get(column), text) for column in columns)
        table.add_row(_named(name), *shown, own.facts.get("algorithm", ""))
    means = [f"{geometric_mean(found):.2f}x" if (found := ratios(rows, c, "refsd")) else "-" for c in columns]
    table.add_section()
    table.add_row("geometric mean", "", *means[1:], "")
    return table


def _against_copy(family: str, rows: Rows) -> Table:
    """Show each contender's time and its ratio to the time of a memory copy."""
    table, columns = _table(f"{family}: time, and its ratio to the copy's", rows)
    for name, cells in rows.items():
        copy = cells["copy"]

        def text(cell: Cell, copy=copy) -> str:
            ratio = "" if cell is copy or copy.absent else f"  {cell.best / copy.best:.2f}x"
            return milliseconds(cell.best) + ratio

        table.add_row(_named(name), *(_cell(cells.get(column), text) for column in columns))
    means = [f"{geometric_mean(found):.2f}x" if (found := ratios(rows, c, "copy")) else "-" for c in columns]
    table.add_section()
    table.add_row("geometric mean", *(mean if c != "copy" else "" for c, mean in zip(columns, means, strict=True)))
    return table


def _throughput(family: str, rows: Rows) -> Table:
    """Show each contender's output in GB/s of float32, and its time divided by refsd's."""
    table, columns = _table(f"{family}: GB/s of float32 made, and refsd's ratio to it", rows)
    for name, cells in rows.items():
        own = cells["refsd"]

        def text(cell: Cell, own=own, made=ROWS[name].bytes) -> str:
            ratio = "" if cell is own or own.absent else f"  {cell.best / own.best:.2f}x"
            return f"{made / cell.best / 1e9:.1f}{ratio}"

        table.add_row(_named(name), *(_cell(cells.get(column), text) for column in columns))
    means = [f"{geometric_mean(found):.2f}x" if (found := ratios(rows, c, "refsd")) else "-" for c in columns]
    table.add_section()
    table.add_row("geometric mean", "", *means[1:])
    return table


def _with_memory(family: str, rows: Rows) -> Table:
    """Show time, and peak memory beyond the layer's result in MiB and as a share of the delta's size."""
    table, columns = _table(f"{family}: time; extra memory, as a share of the delta's", rows)
    for name, cells in rows.items():
        delta = ROWS[name].bytes / 2**20

        def text(cell: Cell, delta=delta) -> str:
            extra = cell.facts.get("extra MiB")
            return milliseconds(cell.best) + (
                f"  {extra:.2f} MiB, {extra / delta:.3g}" if extra is not None else ""
            )

        table.add_row(f"{_named(name)} ({delta:.1f} MiB)", *(_cell(cells.get(column), text) for column in columns))
    return table


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
