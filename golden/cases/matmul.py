"""Linear layers, by weight type."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_SCALAR = ("f32", "f16", "bf16")
_BLOCK32 = ("q4_0", "q8_0")
_BLOCK256 = ("q4_k", "q6_k")
_FEW_BITS = ("iq1_m", "iq2_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "mxfp4", "nvfp4", "q1_0", "q2_0")
_FLOAT8 = ("f8_e4m3", "f8_e5m2")
# Less common ones.
_RARE = ("q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k")


def _linear(
    label: str, type: str, x: tuple[int, ...], out: int, bias=True, x_data="bell", w_data="bell", **x_recipe
):
    """One linear case; the weight's exponent keeps outputs near 1."""
    K = x[-1]
    inputs = {"x": Recipe(x, data=x_data, **x_recipe), "weight": Recipe((out, K), type, data=w_data, exponent=-19)}
    if bias:
        inputs["bias"] = Recipe((out,))
    if w_data == "integers":
        inputs["weight"] = Recipe((out, K), type, data=w_data, exponent=0)
    shape = "x".join(map(str, x))
    return Case(f"linear/{type}/{label}-x{shape}-o{out}", "linear", inputs)


CASES = [
    *(_linear("awkward", t, (2, 33, 77), 20) for t in _SCALAR),
    *(_linear("tokens", t, (77, 320), 33) for t in (*_SCALAR, *_BLOCK32)),
    *(_linear("tokens", t, (33, 512), 77) for t in _BLOCK256),
    *(_linear("row", t, (1, 320), 77, bias=False) for t in (*_SCALAR, *_BLOCK32)),
    *(_linear("row", t, (1, 768), 33, bias=False) for t in _BLOCK256),
    *(_linear("outliers", t, (9, 256), 20, x_data="outliers") for t in ("f16", "q8_0", "q4_k")),
    *(
        _linear("integers", t, (5, 96), 40, x_data="integers", w_data="integers", exponent=0)
        for t in ("f32", "f16")
    ),
    _linear("mean", "f32", (7, 320), 33, offset=8.0),
    _linear("small", "f32", (7, 132), 33, bias=False, exponent=-45),
    _linear("wide", "f32", (7, 132), 33, x_data="wide"),
    _linear("positive", "f32", (7, 320), 33, x_data="positive"),
    *(_linear("tokens", t, (20, 256), 33) for t in _RARE),
    *(_linear("tokens", t, (9, 256), 20) for t in (*_FEW_BITS, *_FLOAT8)),
    # The minimums meet a large sum, which Q8_1 keeps in float16.
    *(_linear("mean", t, (20, 256), 33, offset=8.0) for t in ("q4_1", "q5_1", "q4_k")),
]
