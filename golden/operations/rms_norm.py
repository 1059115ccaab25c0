"""Normalisation by the root of the mean square."""

from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, EPS, EPS_IN_THE_ROW, MANY_ROWS, NO_WEIGHT
from refsd.golden.operation import ROWS, Mutant, Operation, optional, values
from refsd.golden.operations.normalisation import SQUARES_IN_FLOAT16, normalised, row_norm, sums_of_blocks
from refsd.golden.recipe import Recipe


def centred_rms(op, inputs, params):
    y = normalised(inputs["x"].values(), -1, params["eps"])
    return y * inputs["weight"].values() if "weight" in inputs else y


def _case(label: str, x: tuple[int, ...], eps=1e-6, data="bell", exponent=-15) -> Case:
    inputs = {"x": Recipe(x, data=data, exponent=exponent), "weight": Recipe(x[-1:], offset=1.0)}
    return Case(f"rms_norm/f32/{label}-x{'x'.join(map(str, x))}", "rms_norm", inputs, {"eps": eps})


RMS_NORM = Operation(
    "rms_norm",
    "Scale each row to unit mean square.",
    family="norms",
    inputs={"x": ROWS, "weight?": "[D]"},
    output=ROWS,
    params={"eps": 1e-6},
    run=lambda a, inputs, params: a.rms_norm(values(a, inputs["x"]), optional(a, inputs, "weight"), params["eps"]),
    bound=lambda run: row_norm(run, False),
    mutants=(
        *EPS,
        EPS_IN_THE_ROW,
        NO_WEIGHT,
        Mutant("mean subtracted", centred_rms),
        BATCH,
        *sums_of_blocks(centred=False),
        SQUARES_IN_FLOAT16,
        *MANY_ROWS,
    ),
    cases=(
        _case("plain", (2, 33, 77)),
        _case("heads", (2, 20, 3, 128)),
        _case("tiny", (33, 320), data="tiny"),
        _case("large-eps", (2, 9, 64), eps=1e-4, data="tiny"),
        # Squares beyond float16's range.
        _case("loud", (5, 260), exponent=-8),
        _case("large", (3, 2080)),
        _case("large", (3, 5120)),
        # More rows than 16 bits can count, as the heads of a video's tokens.
        _case("rows", (32800, 2, 2)),
        Case("rms_norm/f32/bare-x2x10x132", "rms_norm", {"x": Recipe((2, 10, 132), data="tiny")}),
    ),
)

OPERATIONS = (RMS_NORM,)
