import numpy as np
import pytest

from refsd.golden.case import Case
from refsd.golden.cases import CASES
from refsd.golden.engines import gguf_py
from refsd.golden.recipe import Recipe

ENGINE = gguf_py.find()[0].engine
DEQUANTIZE = [case for case in CASES.values() if case.op == "dequantize"]


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
    assert "q8_k" in ENGINE.refuses(Case("d", "dequantize", {"x": Recipe((1, 256), "q8_k")}))
    assert "no_such" in ENGINE.refuses(Case("d", "dequantize", {"x": Recipe((1, 256), "no_such")}))
