"""Format the result of refsd.bench as a table."""

from collections.abc import Iterator

from rich.table import Table

from refsd.bench import Entry, best
from refsd.bench.environment import presets


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
    held = ("-" if name == "limit" else f"{entries[name].peak / 2**30:.2f} GiB" for name in present)
    shown.add_row("peak memory of the process", *held)
    return shown


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def warnings(entries: dict[str, Entry]) -> Iterator[str]:
    """List each contender's versions, absent contenders with reasons, and what the limit is."""
    for name, entry in entries.items():
        if entry.absent:
            yield f"{name}: absent: {entry.absent}"
        else:
            yield f"{name}: " + ", ".join(f"{key} {value}" for key, value in entry.setup.items())
    if "limit" in entries and not entries["limit"].absent:
        yield "limit: the multiplications that refsd makes, at the rate of multiply-adds measured in the same turns"
    for name, value in presets().items():
        yield f"{name}={value} was preset, and taken out for every contender"
