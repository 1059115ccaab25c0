"""Format the result of refsd.bench as a table."""

import os
from collections.abc import Iterator

from rich.table import Table

from refsd.bench import Entry, best


def table(entries: dict[str, Entry]) -> Table:
    """Show each contender's best time, and its ratio to refsd's time; one line for each row."""
    present = [name for name, entry in entries.items() if entry.seconds]
    shown = Table(title="best time, and its ratio to refsd's")
    shown.add_column("float32")
    for name in present:
        shown.add_column(name, justify="right")
    for row, seconds in best(entries).items():
        own = seconds.get("refsd")
        cells = []
        for name in present:
            if name not in seconds:
                cells.append("-")
                continue
            ratio = f"  {seconds[name] / own:.2f}x" if own and name != "refsd" else ""
            cells.append(_time(seconds[name]) + ratio)
        shown.add_row(row, *cells)
    shown.add_section()
    shown.add_row("peak memory of the process", *(f"{entries[name].peak / 2**30:.2f} GiB" for name in present))
    return shown


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def warnings(entries: dict[str, Entry]) -> Iterator[str]:
    """List each contender's versions, absent contenders with reasons, and settings that slow the benchmark."""
    for name, entry in entries.items():
        if entry.absent:
            yield f"{name}: absent: {entry.absent}"
        else:
            yield f"{name}: " + ", ".join(f"{key} {value}" for key, value in entry.setup.items())
    if preset := os.environ.get("OPENBLAS_CORETYPE"):
        yield f"OPENBLAS_CORETYPE={preset} is set: NumPy's matrix products may run at half their speed"
