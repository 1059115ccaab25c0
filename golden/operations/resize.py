"""Resampling to any size: nearest, bilinear and bicubic.

`factors` (down, across) are the numbers that height and width were rounded down from, as torch's scale_factor with
recompute_scale_factor off: the step between pixels is 1 / factor. None: it is old / new. `align_corners` and
`antialias` are torch's; half pixels hold without the first.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from refsd.golden.bounds import Run, movement
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, SIDES_SWAPPED, Wrong, answer, other_input, other_run
from refsd.golden.operation import IMAGE, REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, gamma
from refsd.kernels import interpolate
from refsd.kernels import interpolation_taps as taps
from refsd.kernels.interpolate import weighted
from refsd.kernels.resample import resize_nearest, resize_nearest_exact
from refsd.numerics.errors import BadInput

# (align_corners, antialias) -> the suffix of the kernel's name
CONVENTIONS = {(False, False): "", (True, False): "_corners", (False, True): "_antialias"}


def _run_nearest(a, inputs, params):
    return resize_nearest(values(a, inputs["x"]), params["height"], params["width"])


def _run_nearest_exact(a, inputs, params):
    return resize_nearest_exact(values(a, inputs["x"]), params["height"], params["width"])


def _run(kind):
    def run(a, inputs, params):
        how = params["align_corners"], params["antialias"]
        if how not in CONVENTIONS:
            raise BadInput(f"resize_{kind}: align_corners and antialias exclude each other")
        kernel = getattr(interpolate, f"resize_{kind}{CONVENTIONS[how]}")
        return a.apply(kernel, values(a, inputs["x"]), **_size(params))

    return run


def _size(params) -> dict:
    """Return the new size, and the factor if there is one. Raises BadInput for one with aligned corners."""
    if params.get("factors") is None:
        return {name: params[name] for name in ("height", "width")}
    if params["align_corners"]:
        raise BadInput("resize: where corners are aligned the sizes alone say the step, and there is no factor")
    return {name: params[name] for name in ("height", "width", "factors")}


def _fits(shapes, params) -> bool:
    """Return True if one convention holds, and the factor, if there is one, gives the size, rounded down."""
    one_convention = not (params.get("align_corners") and (params.get("antialias") or params.get("factors")))
    size = params["height"], params["width"]
    factors = params.get("factors") or [new / old for old, new in zip(shapes["x"][2:], size, strict=True)]
    made = all(int(old * f + 1e-9) == new for old, f, new in zip(shapes["x"][2:], factors, size, strict=True))
    return min(size) >= 1 and one_convention and made


_NEW_SIZE = {"height": REQUIRED, "width": REQUIRED}

_CONVENTION = {"align_corners": False, "antialias": False, "factors": None}

# The most that a weight changes if its pixel moves by one: the steepest slope of its curve.
_LINEAR, _CUBIC = 1.0, 1.6


def _bound(conventions: dict[tuple[bool, bool], Callable], slope: float) -> Callable[[Run], Bound]:
    """Return the bound of y = sum w x over T taps an axis.

    A position (p + 1/2) H/P - 1/2 takes some 4 roundings of numbers up to H; a weight's error is slope times that,
    and 6 u of itself: sum |w| dx + dw (sum |x| of one axis' taps, weighted along the other) + gamma(2 T + 6)
    sum |w| |x|. Normalised weights also have the error of their sum, which is no larger.
    """

    def bound(run: Run) -> Bound:
        make = conventions[run.params["align_corners"], run.params["antialias"]]
        x, dx = np.abs(run.inputs["x"]), run.moved("x")
        rows, columns = _taps(make, x.shape[2:], run.params)
        heavy = [taps.Taps(t.index, np.abs(t.weight)) for t in (rows, columns)]
        filtered = run.params["antialias"]
        lost = [
            _lost(t, run.u, slope, size, filtered) for t, size in zip((rows, columns), x.shape[2:], strict=True)
        ]
        terms = Terms().add(weighted(np.ascontiguousarray(dx), *heavy))
        terms.add(weighted(x, lost[0], heavy[1])).add(weighted(x, heavy[0], lost[1]))
        T = rows.index.shape[1] * columns.index.shape[1]
        return run.rounded(terms.add(gamma(2 * T + 6, run.u) * weighted(x, *heavy)))

    return bound


def _taps(make: Callable[..., taps.Taps], old, params) -> tuple[taps.Taps, taps.Taps]:
    """Make the taps of rows and of columns."""
    steps = [()] * 2 if params.get("factors") is None else [(1 / f,) for f in params["factors"]]
    (H, W), (down, across) = old, steps
    return make(H, params["height"], *down), make(W, params["width"], *across)


def _lost(t: taps.Taps, u: float, slope: float, size: int, filtered: bool) -> taps.Taps:
    """Return the error of each weight, doubled to cover weights that are divided by their sum.

    A position very near a pixel may be rounded to its other side: then the window begins one pixel earlier, or
    ends one later, and the weight of the pixel there is at most the error of the outermost weight on the far side.
    """
    most = 2 * slope * 4 * u * (size + 1)
    lost = np.full(t.weight.shape, most)
    if filtered:
        return taps.Taps(t.index, lost)
    first, last = t.index[:, :1], t.index[:, -1:]
    earlier = (np.abs(t.weight[:, -1:]) <= most) & (first > 0)
    later = (np.abs(t.weight[:, :1]) <= most) & (last < size - 1)
    index = [np.maximum(first - 1, 0), t.index, np.minimum(last + 1, size - 1)]
    return taps.Taps(np.concatenate(index, axis=1), np.concatenate([most * earlier, lost, most * later], axis=1))


def weighted_by(rows, columns) -> Wrong:
    def wrong(op, inputs, params):
        x = inputs["x"].values()
        return weighted(x, rows(x.shape[2], params["height"]), columns(x.shape[3], params["width"]))

    return wrong


def _window(size, new) -> tuple[np.ndarray, np.ndarray]:
    """Return the four pixels around each position, those outside too, and how far they are from it."""
    at = (np.arange(new) + 0.5) * size / new - 0.5
    index = np.floor(at).astype(np.int64)[:, None] + np.arange(-1, 3)
    return index, index - at[:, None]


def _steep(size, new):
    """Return the taps of Keys' cubic with a = -1/2."""
    index, apart = _window(size, new)
    return taps.Taps(np.clip(index, 0, size - 1), taps.keys(apart, -0.5))


def _inside(size, new, a=-0.75, renormalised=True):
    """Return the taps of Keys' cubic without those outside the picture, where the border pixel belongs."""
    index, apart = _window(size, new)
    weight = taps.keys(apart, a) * ((index >= 0) & (index < size))
    if renormalised:
        weight = weight / weight.sum(axis=1, keepdims=True)
    return taps.Taps(np.clip(index, 0, size - 1), weight)


def _mirrored(size, new):
    """Return the taps of Keys' cubic with the picture mirrored at its border."""
    index, apart = _window(size, new)
    weight = taps.keys(apart, -0.75)
    index = np.where(index < 0, -1 - index, index)
    return taps.Taps(np.clip(np.where(index >= size, 2 * size - 1 - index, index), 0, size - 1), weight)


def toggled(name: str) -> Wrong:
    """Toggle a flag, and clear the other: the two exclude each other."""

    def wrong(op, inputs, params):
        other = "antialias" if name == "align_corners" else "align_corners"
        return answer(op, inputs, {**params, name: not params[name], other: False})

    return wrong


def pixels_at_most(make: Callable[[int, int], taps.Taps], most: int) -> Wrong:
    """Take the first pixels of each window alone, as many as there is room for, with weights that sum to 1."""

    def few(size, new):
        index, weight = (t[:, :most] for t in make(size, new))
        return taps.Taps(index, weight / weight.sum(axis=1, keepdims=True))

    return lambda op, inputs, params: weighted_by(few, few)(op, inputs, params) if params["antialias"] else None


def linear_at(place: Callable[[np.ndarray, float], np.ndarray]) -> Wrong:
    """Interpolate at other positions. place: p, H/P -> the position"""

    def make(size, new):
        at = place(np.arange(new), size / new).clip(0, size - 1)
        first = np.floor(at).astype(np.int64)
        t = at - first
        return taps.Taps(np.minimum(first[:, None] + [0, 1], size - 1), np.stack([1 - t, t], axis=1))

    return weighted_by(make, make)


def by_the_sizes(op, inputs, params):
    """Take the step from the sizes, though a factor is given."""
    return answer(op, inputs, {**params, "factors": None}) if params["factors"] else None


def taken_at(place: Callable[[np.ndarray, float], np.ndarray]) -> Wrong:
    """Take the nearest pixels by another rule. place: p, H/P -> the old pixel"""

    def wrong(op, inputs, params):
        x = inputs["x"].values()
        H, W = x.shape[2:]
        P, Q = params["height"], params["width"]
        rows, columns = (np.clip(place(np.arange(n), s / n).astype(int), 0, s - 1) for n, s in ((P, H), (Q, W)))
        return x[:, :, rows[:, None], columns]

    return wrong


_LOWER, _UPPER = (lambda low, up, size: low), (lambda low, up, size: up)
_BEFORE = lambda low, up, size: np.minimum(up, max(size - 2, 0))


def _upper_read(*places: Callable[..., np.ndarray]) -> Wrong:
    """Read other pixels for the upper of the two of rows, and of columns. places: lower, upper, H -> the pixel"""

    def wrong(op, inputs, params):
        x = inputs["x"].values()
        made = _taps(taps.linear_corners if params["align_corners"] else taps.linear, x.shape[2:], params)
        both = zip(made, places, x.shape[2:], strict=True)
        read = [taps.Taps(np.stack([t.index[:, 0], of(*t.index.T, n)], 1), t.weight) for t, of, n in both]
        return None if params["antialias"] else weighted(x, *read)

    return wrong


def _never_read(*axes: int) -> Wrong:
    """Read the last but one of an axis for the last: places are limited to one too few."""

    def change(x):
        for axis in axes:
            x = x.take(np.minimum(np.arange(x.shape[axis]), max(x.shape[axis] - 2, 0)), axis)
        return x

    return other_input("x", change)


_BY_THE_SIZES = Mutant("pixels H / height apart, not 1 / factor", by_the_sizes)

ENDS = (
    Mutant("last row and column never read", _never_read(2, 3)),
    Mutant("last row never read", _never_read(2)),
    Mutant("last column never read", _never_read(3)),
)
_WHOLE_STEP = "the ratio of the sides rounded down to a whole number, where it is above 1"


def _whole(step: float) -> float:
    return step // 1 or step


_NEAREST = (
    Mutant(_WHOLE_STEP, taken_at(lambda p, step: np.floor(p * _whole(step)))),
    Mutant("rounded", taken_at(lambda p, step: np.rint(p * step))),
    Mutant("by a step that is rounded down", taken_at(lambda p, step: np.floor(p * step * (1 - 2**-24)))),
    Mutant("half-pixel centres", taken_at(lambda p, step: np.floor((p + 0.5) * step))),
    Mutant("corners on corners", taken_at(lambda p, step: np.floor(p * (step + (step - 1) / max(len(p) - 1, 1))))),
)


def _case(kind: str, label: str, x: tuple[int, int, int, int], size: tuple[int, int], **how) -> Case:
    N, C, H, W = x
    params = {"height": size[0], "width": size[1], **how}
    name = f"resize_{kind}/f32/{label}-n{N}-c{C}-h{H}-w{W}-to{size[0]}x{size[1]}"
    return Case(name, f"resize_{kind}", {"x": Recipe(x)}, params)


def _cases(kind: str) -> tuple[Case, ...]:
    """Make cases that enlarge and reduce, by every convention, one to a single row: its corner is the first."""
    return (
        _case(kind, "up", (2, 3, 5, 7), (13, 11)),
        _case(kind, "down", (2, 3, 12, 9), (5, 7)),
        _case(kind, "corners-up", (2, 3, 5, 7), (13, 11), align_corners=True),
        _case(kind, "corners-down", (2, 3, 12, 9), (5, 7), align_corners=True),
        _case(kind, "corners-one", (2, 3, 6, 5), (1, 9), align_corners=True),
        _case(kind, "corners-of-one", (2, 3, 1, 5), (4, 9), align_corners=True),
        _case(kind, "smooth-down", (2, 3, 20, 14), (6, 5), antialias=True),
        _case(kind, "smooth-up", (2, 3, 4, 6), (7, 15), antialias=True),
    )


# To odd sizes, too: a kernel may write two pixels at a time.
_SIZES = ("up", (2, 3, 5, 7), (8, 16)), ("down", (2, 3, 16, 20), (6, 8)), ("odd", (2, 3, 9, 14), (5, 11))
_resize = partial(Operation, inputs={"x": IMAGE}, output="[N, C, height, width]", channel=1, fits=_fits)

RESIZE_NEAREST = _resize(
    "resize_nearest",
    "Take the pixel at floor(p H / height), floor(q W / width).",
    params={**_NEW_SIZE},
    run=_run_nearest,
    bound=movement,
    mutants=(
        *_NEAREST,
        *ENDS,
        SIDES_SWAPPED,
        BATCH,
        Mutant("bilinear", other_run(_run("bilinear"), **_CONVENTION)),
    ),
    cases=(
        *(_case("nearest", *how) for how in _SIZES),
        _case("nearest", "inexact", (1, 2, 41, 47), (82, 94)),  # 41 times float32's 1 / 82 is less than 1 / 2
    ),
)

RESIZE_NEAREST_EXACT = _resize(
    "resize_nearest_exact",
    "Take the pixel under the new one's centre: floor((p + 1/2) H / height), floor((q + 1/2) W / width).",
    params={**_NEW_SIZE},
    run=_run_nearest_exact,
    bound=movement,
    mutants=(
        Mutant("no half pixels: nearest, not nearest-exact", other_run(_run_nearest)),
        *(mutant for mutant in _NEAREST if mutant.name != "half-pixel centres"),
        Mutant("at a tie the lower pixel", taken_at(lambda p, step: np.ceil((p + 0.5) * step - 1))),
        *ENDS,
        SIDES_SWAPPED,
        BATCH,
        Mutant("bilinear", other_run(_run("bilinear"), **_CONVENTION)),
    ),
    cases=tuple(_case("nearest_exact", *how) for how in _SIZES),
)

RESIZE_BILINEAR = _resize(
    "resize_bilinear",
    "Interpolate between the two nearest of each axis.",
    params={**_NEW_SIZE, **_CONVENTION},
    run=_run("bilinear"),
    bound=_bound(
        {(False, False): taps.linear, (True, False): taps.linear_corners, (False, True): taps.triangle}, _LINEAR
    ),
    mutants=(
        Mutant("align_corners of the other value: corners or half pixels", toggled("align_corners")),
        Mutant("the other antialias", toggled("antialias")),
        _BY_THE_SIZES,
        Mutant("no half pixels", linear_at(lambda p, step: p * step)),
        Mutant(_WHOLE_STEP, linear_at(lambda p, step: (p + 0.5) * _whole(step) - 0.5)),
        Mutant("nearest", other_run(_run_nearest)),
        Mutant("bicubic", other_run(_run("bicubic"))),
        Mutant("rows not interpolated: the upper one alone", _upper_read(_LOWER, _UPPER)),
        Mutant("columns not interpolated: the left one alone", _upper_read(_UPPER, _LOWER)),
        Mutant("the upper of two pixels is never the last", _upper_read(_BEFORE, _BEFORE)),
        *(Mutant(f"at most {n} pixels of an axis count", pixels_at_most(taps.triangle, n)) for n in (2, 3, 4)),
        *ENDS,
        SIDES_SWAPPED,
        BATCH,
    ),
    # By factors that give no whole size, here and below.
    cases=(*_cases("bilinear"), _case("bilinear", "factor-up", (2, 3, 5, 7), (7, 12), factors=(1.5, 1.75))),
)

RESIZE_BICUBIC = _resize(
    "resize_bicubic",
    "Keys' cubic over the four nearest of each axis: a = -3/4, with antialias -1/2.",
    params={**_NEW_SIZE, **_CONVENTION},
    run=_run("bicubic"),
    bound=_bound(
        {(False, False): taps.cubic, (True, False): taps.cubic_corners, (False, True): taps.wide_cubic}, _CUBIC
    ),
    mutants=(
        Mutant("align_corners of the other value: corners or half pixels", toggled("align_corners")),
        Mutant("the other antialias", toggled("antialias")),
        _BY_THE_SIZES,
        Mutant("a is -1/2", weighted_by(_steep, _steep)),
        Mutant("pixels outside the border left out, the others enlarged", weighted_by(_inside, _inside)),
        Mutant("zeros outside the border, not its pixel", weighted_by(*2 * [partial(_inside, renormalised=False)])),
        Mutant("the picture mirrored outside the border", weighted_by(_mirrored, _mirrored)),
        Mutant("bilinear", other_run(_run("bilinear"))),
        *(Mutant(f"at most {n} pixels of an axis count", pixels_at_most(taps.wide_cubic, n)) for n in (4, 8)),
        *ENDS,
        SIDES_SWAPPED,
        BATCH,
    ),
    cases=(
        *_cases("bicubic"),
        _case("bicubic", "factor-down", (2, 3, 15, 14), (6, 5), antialias=True, factors=(0.4375, 0.375)),
    ),
)

OPERATIONS = (RESIZE_NEAREST, RESIZE_NEAREST_EXACT, RESIZE_BILINEAR, RESIZE_BICUBIC)
