"""Format the solvers' costs (refsd/bench/samplers.py) as tables."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from refsd.bench.kernel_tables import geometric_mean
from refsd.bench.samplers import SHAPE, STEPS, Cost


def tables(costs: Mapping[str, Mapping[str, Cost]], beside: Mapping[str, float]) -> Iterator[Table]:
    """Show each step's microseconds and ratio to one pass over its state; then what `beside` measures."""
    table = Table(title="a step beyond the model's calls, its ratio to one pass over its state, and to a copy")
    table.add_column("latents " + " x ".join(map(str, SHAPE)))
    for dtype in costs:
        for column in (dtype, "one pass", "ratio", "to copy"):
            table.add_column(column, justify="right")
    names = dict.fromkeys(name for rows in costs.values() for name in rows)
    for name in names:
        cells = []
        for rows in costs.values():
            cost = rows[name]
            cells += microseconds(cost.step), microseconds(cost.once), f"{cost.ratio:.2f}x"
            cells.append(f"{cost.step / cost.copy:.2f}x")
        table.add_row(name, *cells)
    means = []
    for rows in costs.values():
        means += "", "", f"{geometric_mean(cost.ratio for cost in rows.values()):.2f}x"
        means.append(f"{geometric_mean(cost.step / cost.copy for cost in rows.values()):.2f}x")
    table.add_section()
    table.add_row("geometric mean", *means)
    yield table
    other = Table(title="beside the solver, in float32")
    other.add_column("")
    other.add_column("a call", justify="right")
    for name, seconds in beside.items():
        other.add_row(name, microseconds(seconds))
    yield other


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def notes() -> Iterator[str]:
    yield f"runs of {STEPS} steps on one thread; one pass: a compiled loop that reads and writes the state once"
