"""Sines and cosines of a pixel's position."""

import numpy as np

from refsd.golden.bounds import FUNCTION, Run
from refsd.golden.case import Case
from refsd.golden.mutations import answer, other_input
from refsd.golden.operation import REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms
from refsd.kernels.sincos_positions import sincos_positions


def _run(a, inputs, params):
    rows, columns = (values(a, inputs[name]).astype(np.float64) for name in ("rows", "columns"))
    return a.store(sincos_positions(params["dim"], rows, columns))


def _bound(run: Run) -> Bound:
    """Bound sin(p f), f = 10000^(-i / quarter), as timestep_embedding does."""
    quarter = run.params["dim"] // 4
    ratio = np.log(10000) * np.arange(quarter) / quarter
    rows, columns = (
        np.exp(-ratio) * (np.abs(p) * run.u * (2 * ratio + FUNCTION + 1) + dp)
        for p, dp in ((run.inputs[name][:, None], run.moved(name)[:, None]) for name in ("rows", "columns"))
    )
    shape = (len(rows), len(columns), quarter)
    angle = [np.broadcast_to(t, shape) for t in (columns[None], columns[None], rows[:, None], rows[:, None])]
    limit = np.minimum(np.concatenate(angle, axis=-1), 2.0) + FUNCTION * run.u
    limit = limit.reshape(run.truth.shape)
    return run.rounded(Terms().add(limit, limit / FUNCTION))


def rows_first(op, inputs, params):
    column, row = np.split(answer(op, inputs, params), 2, axis=-1)
    return np.concatenate([row, column], axis=-1)


def cosines_first(op, inputs, params):
    a, b, c, d = np.split(answer(op, inputs, params), 4, axis=-1)
    return np.concatenate([b, a, d, c], axis=-1)


def pixels_by_column(op, inputs, params):
    y = answer(op, inputs, params)
    H, W = (inputs[name].shape[0] for name in ("rows", "columns"))
    return y.reshape(H, W, -1).swapaxes(0, 1).reshape(y.shape)


def _case(label: str, dim: int, H: int, W: int) -> Case:
    """Make a case of fractional coordinates in 0..16: a grid finer than the one a model was trained on."""
    inputs = {
        "rows": Recipe((H,), data="positive", exponent=-14),
        "columns": Recipe((W,), data="positive", exponent=-14),
    }
    return Case(f"sincos_positions/f32/{label}-h{H}-w{W}-d{dim}", "sincos_positions", inputs, {"dim": dim})


SINCOS_POSITIONS = Operation(
    "sincos_positions",
    "Sines and cosines of each pixel's column, then of its row.",
    family="positions",
    inputs={"rows": "[H]", "columns": "[W]"},
    output="[H*W, dim]",
    params={"dim": REQUIRED},
    run=_run,
    fits=lambda shapes, params: params["dim"] >= 4 and params["dim"] % 4 == 0,
    bound=_bound,
    mutants=(
        Mutant("row before column", rows_first),
        Mutant("cosine before sine", cosines_first),
        Mutant("positions from one", other_input("columns", lambda c: c + 1)),
        Mutant("pixels column by column", pixels_by_column),
    ),
    cases=(
        _case("sd3", 64, 5, 7),
        _case("square", 20, 6, 6),
    ),
)

OPERATIONS = (SINCOS_POSITIONS,)
