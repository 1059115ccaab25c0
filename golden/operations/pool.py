"""Average and maximum pooling."""

import numpy as np

from refsd.golden.bounds import Run, movement
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, SIDES_SWAPPED, answer, other_params, to_float16, turned
from refsd.golden.operation import IMAGE, REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, gamma
from refsd.kernels import pool


def _window(params):
    return {name: tuple(params[name]) for name in ("kernel_size", "stride", "padding")}


def _run_avg(a, inputs, params):
    kernel = pool.avg_pool2d if params["count_include_pad"] else pool.avg_pool2d_inside
    return a.apply(kernel, values(a, inputs["x"]), **_window(params))


def _fits(shapes, params) -> bool:
    """Return True if the window fits into the padded picture, and no window is all padding."""
    window = _window(params)
    axes = zip(shapes["x"][2:], window["kernel_size"], window["stride"], window["padding"], strict=True)
    return all(n >= 1 and step >= 1 and 0 <= 2 * pad <= n <= size + 2 * pad for size, n, step, pad in axes)


_WINDOW = {"kernel_size": REQUIRED, "stride": REQUIRED, "padding": (0, 0)}


def _bound_avg(run: Run) -> Bound:
    """Add gamma(window size + 1) times the mean of |x| to the mean of dx."""
    mean = pool.avg_pool2d if run.params["count_include_pad"] else pool.avg_pool2d_inside
    window = [tuple(run.params[name]) for name in ("kernel_size", "stride", "padding")]
    n = window[0][0] * window[0][1]
    x, dx = np.abs(run.inputs["x"]), np.ascontiguousarray(run.moved("x"))
    return run.rounded(Terms().add(mean(dx, *window)).add(gamma(n + 1, run.u) * mean(x, *window)))


def zeros_compete(op, inputs, params):
    """Let the padding's zeros be the maximum."""
    x = inputs["x"].values()
    top, left = params["padding"]
    if not top and not left:
        return None
    far = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    return pool.max_pool2d(far, tuple(params["kernel_size"]), tuple(params["stride"]), (0, 0))


def _case(kind: str, label: str, x: tuple[int, int, int, int], window, stride, padding=(0, 0), **how) -> Case:
    """Make a case with numbers below zero, where a zero of the padding would be the maximum.

    how: other parameters; offset, exponent: of the numbers
    """
    N, C, H, W = x
    inputs = {"x": Recipe(x, offset=how.pop("offset", -8.0), exponent=how.pop("exponent", -15))}
    params = {"kernel_size": window, "stride": stride, "padding": padding, **how}
    return Case(f"{kind}_pool2d/f32/{label}-n{N}-c{C}-h{H}-w{W}", f"{kind}_pool2d", inputs, params)


def sums_in_float16(op, inputs, params):
    """Add up the window in float16, and divide then: a sum beyond 65504 is infinite."""
    if not params["count_include_pad"]:
        return None
    taps = np.float32(params["kernel_size"][0] * params["kernel_size"][1])
    return to_float16(answer(op, inputs, params) * taps) / taps


AVG_POOL2D = Operation(
    "avg_pool2d",
    "The mean of each window, vertical size first; the padding's zeros count, or not.",
    inputs={"x": IMAGE},
    output="[N, C, P, Q]",
    channel=1,
    params={**_WINDOW, "count_include_pad": True},
    run=_run_avg,
    fits=_fits,
    bound=_bound_avg,
    mutants=(
        Mutant("the other count", other_params(count_include_pad=lambda count: not count)),
        Mutant("window turned", turned("kernel_size")),
        Mutant("stride turned", turned("stride")),
        Mutant("the window's sum in float16: infinite beyond 65504", sums_in_float16),
        SIDES_SWAPPED,
        BATCH,
    ),
    cases=(
        _case("avg", "plain", (2, 7, 9, 12), (2, 3), (2, 3)),
        _case("avg", "border", (2, 7, 9, 12), (3, 5), (2, 1), (1, 2)),
        _case("avg", "inside", (2, 7, 9, 12), (3, 5), (2, 1), (1, 2), count_include_pad=False),
        # Numbers in float16's range, whose sums are not.
        _case("avg", "loud", (1, 5, 9, 12), (3, 4), (3, 4), offset=9000.0, exponent=-8),
    ),
)

MAX_POOL2D = Operation(
    "max_pool2d",
    "The largest number of each window.",
    inputs={"x": IMAGE},
    output="[N, C, P, Q]",
    channel=1,
    params={**_WINDOW},
    run=lambda a, inputs, params: a.apply(pool.max_pool2d, values(a, inputs["x"]), **_window(params)),
    fits=_fits,
    bound=movement,
    mutants=(
        Mutant("zeros of the border compete", zeros_compete),
        Mutant("the maximum starts at 0", lambda op, i, p: np.maximum(answer(op, i, p), 0)),
        Mutant("window turned", turned("kernel_size")),
        Mutant("stride turned", turned("stride")),
        SIDES_SWAPPED,
        BATCH,
    ),
    cases=(
        _case("max", "plain", (2, 7, 9, 12), (2, 3), (2, 3)),
        _case("max", "border", (2, 7, 9, 12), (3, 5), (2, 1), (1, 2)),
        _case("max", "signs", (2, 7, 9, 12), (3, 3), (2, 1), offset=-1.0),
    ),
)

OPERATIONS = (AVG_POOL2D, MAX_POOL2D)
