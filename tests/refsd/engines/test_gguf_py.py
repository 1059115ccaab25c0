import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines import gguf_py
from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

ENGINE = gguf_py.find()[0].engine
NOT_THERE = {"q8_1", "q1_0", "q2_0", "f8_e4m3", "f8_e5m2"}
DEQUANTIZE = [c for c in CASES.values() if c.op == "dequantize" and c.inputs["x"].type not in NOT_THERE]


@pytest.mark.parametrize("case", DEQUANTIZE, ids=lambda case: case.name)
def test_block_types_agree_bit_for_bit(case):
    assert ENGINE.refuses(case) is None
    inputs = case.realize()
    y = ENGINE.run(case, inputs)["y"]
    assert y.shape == case.inputs["x"].shape
    np.testing.assert_array_equal(y, inputs["x"].values())


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_scalar_types(kind):
    case = Case(f"dequantize/{kind}", "dequantize", {"x": Recipe((3, 64), kind)})
    inputs = case.realize()
    assert ENGINE.refuses(case) is None
    np.testing.assert_array_equal(ENGINE.run(case, inputs)["y"], inputs["x"].values().astype(np.float32))


def test_refusals():
    assert "only dequantizes" in ENGINE.refuses(Case("silu", "silu", {"x": Recipe((2, 2))}))
    for case in CASES.values():
        if case.op == "dequantize" and case.inputs["x"].type in NOT_THERE:
            assert "does not dequantize" in ENGINE.refuses(case)
    assert "q8_k" in ENGINE.refuses(Case("d", "dequantize", {"x": Recipe((1, 256), "q8_k")}))
    assert "no_such" in ENGINE.refuses(Case("d", "dequantize", {"x": Recipe((1, 256), "no_such")}))
