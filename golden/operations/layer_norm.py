"""Layer normalisation."""

from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, EPS, EPS_IN_THE_ROW, NO_WEIGHT, ZERO_BIAS
from refsd.golden.operation import ROWS, Operation, optional, values
from refsd.golden.operations.normalisation import ONE_PASS, SUM_IN_FLOAT16, UNBIASED, row_norm, sums_of_blocks
from refsd.golden.recipe import Recipe


def _run(a, inputs, params):
    weight, bias = optional(a, inputs, "weight"), optional(a, inputs, "bias")
    return a.layer_norm(values(a, inputs["x"]), weight, bias, params["eps"])


def _case(label: str, x: tuple[int, ...], affine=True, eps=1e-5, **of_x) -> Case:
    inputs = {"x": Recipe(x, **of_x)}
    if affine:
        inputs |= {"weight": Recipe(x[-1:], offset=1.0), "bias": Recipe(x[-1:])}
    return Case(f"layer_norm/f32/{label}-x{'x'.join(map(str, x))}", "layer_norm", inputs, {"eps": eps})


LAYER_NORM = Operation(
    "layer_norm",
    "Normalise each row to zero mean and unit variance.",
    family="norms",
    inputs={"x": ROWS, "weight?": "[D]", "bias?": "[D]"},
    output=ROWS,
    params={"eps": 1e-5},
    run=_run,
    bound=lambda run: row_norm(run, True),
    mutants=(
        *(*EPS, EPS_IN_THE_ROW, ONE_PASS, UNBIASED, SUM_IN_FLOAT16, ZERO_BIAS, NO_WEIGHT, BATCH),
        *sums_of_blocks(centred=True),
    ),
    cases=(
        _case("plain", (2, 77, 64)),
        _case("awkward", (33, 77)),
        _case("bare", (2, 33, 320), affine=False, eps=1e-6),
        _case("tiny", (33, 320), data="tiny"),
        _case("loud", (5, 260), exponent=-6),
        _case("mean", (20, 132), data="shifted"),
        # Numbers in float16's range, whose sum is not.
        _case("summed", (7, 132), exponent=-10, offset=2000.0),
        _case("large", (3, 2080)),
        _case("large", (3, 5120)),
    ),
)

OPERATIONS = (LAYER_NORM,)
