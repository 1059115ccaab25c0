"""Move a picture cyclically."""

from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, SIDES_SWAPPED, answer
from refsd.golden.operation import IMAGE, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.kernels import pad


def rolled_turned(op, inputs, params):
    return answer(op, inputs, {"down": params["right"], "right": params["down"]})


def not_around(op, inputs, params):
    """Move zeros in instead of the pixels from the other side."""
    y, (down, right) = answer(op, inputs, params), (params["down"], params["right"])
    y = y.copy()
    y[:, :, slice(0, down) if down >= 0 else slice(down, None)] = 0
    y[:, :, :, slice(0, right) if right >= 0 else slice(right, None)] = 0
    return y


_PICTURE = Recipe((2, 5, 6, 8))

ROLL = Operation(
    "roll",
    "Move a picture; what leaves enters on the other side.",
    inputs={"x": IMAGE},
    output=IMAGE,
    channel=1,
    params={"down": 0, "right": 0},
    run=lambda a, inputs, params: pad.roll(values(a, inputs["x"]), params["down"], params["right"]),
    bound=movement,
    mutants=(
        Mutant("the other way", lambda op, i, p: answer(op, i, {"down": -p["down"], "right": -p["right"]})),
        Mutant("rows and columns exchanged", rolled_turned),
        Mutant("zeros enter", not_around),
        SIDES_SWAPPED,
        BATCH,
    ),
    cases=(
        Case("roll/f32/n2-c5-h6-w8", "roll", {"x": _PICTURE}, {"down": 2, "right": -3}),
        Case("roll/f32/far-n1-c2-h5-w7", "roll", {"x": Recipe((1, 2, 5, 7))}, {"down": -4, "right": 2}),
    ),
)

OPERATIONS = (ROLL,)
