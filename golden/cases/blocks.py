"""Table look-ups and dequantization, by storage type."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_USUAL = ("q4_0", "q8_0", "q4_k", "q6_k")
_RARE = ("q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k")
_GRIDS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
_SMALL = ("iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0")
_FLOAT8 = ("f8_e4m3", "f8_e5m2")


def _embedding(type: str) -> Case:
    ids = Recipe((2, 77), "i32", data="token_ids", exponent=0, n=33)
    return Case(f"embedding/{type}/v33-d256", "embedding", {"ids": ids, "weight": Recipe((33, 256), type)})


def _dequantize(type: str, rows: int) -> Case:
    return Case(f"dequantize/{type}/r{rows}-d512", "dequantize", {"x": Recipe((rows, 512), type)})


CASES = [
    *(_embedding(t) for t in ("f32", "f16", *_USUAL, "iq1_m", "iq2_xxs", "iq4_nl", "tq1_0", "tq2_0", "mxfp4")),
    _embedding("f8_e4m3"),
    *(_dequantize(t, 33) for t in (*_USUAL, *_RARE)),
    *(_dequantize(t, 9) for t in (*_GRIDS, *_SMALL, *_FLOAT8)),
]
