"""A picture's border."""

import numpy as np

from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, SIDES_SWAPPED, Wrong, answer
from refsd.golden.operation import IMAGE, REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.kernels import pad
from refsd.numerics.errors import BadInput

_BORDERS = {
    "zero": pad.pad_zero,
    "replicate": pad.pad_replicate,
    "reflect": pad.pad_reflect,
    "circular": pad.pad_circular,
}


def _run(a, inputs, params):
    if params["mode"] not in _BORDERS:
        raise BadInput(f"pad: mode {params['mode']!r}, expected one of {', '.join(_BORDERS)}")
    return _BORDERS[params["mode"]](values(a, inputs["x"]), tuple(params["padding"]))


def _fits(shapes, params) -> bool:
    """Return True if the picture has the pixels that its border repeats."""
    sides = [params["padding"][i : i + 2] for i in (0, 2)]
    most = {"reflect": 1, "circular": 0}.get(params["mode"])
    room = (most is None or max(pair) <= size - most for pair, size in zip(sides, shapes["x"][2:], strict=True))
    return min(params["padding"]) >= 0 and all(room)


def bordered(mode: str) -> Wrong:
    return lambda op, i, p: answer(op, i, {**p, "mode": mode}) if p["mode"] != mode else None


def other_sides(op, inputs, params):
    top, bottom, left, right = params["padding"]
    return answer(op, inputs, {**params, "padding": (bottom, top, right, left)})


def turned_sides(op, inputs, params):
    top, bottom, left, right = params["padding"]
    y = answer(op, {**inputs}, {**params, "padding": (left, right, top, bottom)})
    return y if (top + bottom) == (left + right) else None


def symmetric(op, inputs, params):
    """Mirror the picture with its outermost pixels repeated."""
    top, bottom, left, right = params["padding"]
    if params["mode"] != "reflect":
        return None
    return np.pad(inputs["x"].values(), ((0, 0), (0, 0), (top, bottom), (left, right)), "symmetric")


def before_one_off(op, inputs, params):
    """Repeat what lies one pixel earlier in a circle in the border before: -1 is n - 2 by (n - 1 + i) % n."""
    x, padding = inputs["x"].values(), params["padding"]
    places = (np.arange(-padding[2 * i], n + padding[2 * i + 1]) for i, n in enumerate(x.shape[2:]))
    rows, columns = ((at - (at < 0)) % n for at, n in zip(places, x.shape[2:], strict=True))
    return x[:, :, rows[:, None], columns] if params["mode"] == "circular" else None


_PICTURE = Recipe((2, 5, 6, 8))

_SIDES = {"padding": (2, 1, 1, 2)}
_BEFORE = {"padding": (2, 0, 0, 0), "mode": "replicate"}

PAD = Operation(
    "pad",
    "A border of (top, bottom, left, right) pixels; mode is zero, replicate, reflect or circular.",
    inputs={"x": IMAGE},
    output="[N, C, top + H + bottom, left + W + right]",
    channel=1,
    params={"padding": REQUIRED, "mode": "zero"},
    run=_run,
    fits=_fits,
    bound=movement,
    mutants=(
        Mutant("zeros", bordered("zero")),
        Mutant("the border's pixel repeated", bordered("replicate")),
        Mutant("mirrored", bordered("reflect")),
        Mutant("the other side", bordered("circular")),
        Mutant("mirrored, the outermost pixel too", symmetric),
        Mutant("one pixel further round the circle, before the picture", before_one_off),
        Mutant("sides exchanged", other_sides),
        Mutant("rows and columns exchanged", turned_sides),
        SIDES_SWAPPED,
        BATCH,
    ),
    cases=(
        *(
            Case(f"pad/f32/{mode}-n2-c5-h6-w8", "pad", {"x": _PICTURE}, {**_SIDES, "mode": mode})
            for mode in ("zero", "replicate", "reflect", "circular")
        ),
        Case("pad/f32/before-n1-c3-h5-w7", "pad", {"x": Recipe((1, 3, 5, 7))}, {"padding": (1, 0, 3, 0)}),
        # A film's first frame repeated before it, of more pixels than 16 bits count.
        Case("pad/f32/frames-n1-c1-h3-w65600", "pad", {"x": Recipe((1, 1, 3, 65600))}, _BEFORE),
    ),
)

OPERATIONS = (PAD,)
