"""What nodes expand is what the storage type means, bit for bit."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from refsd.golden.recipe import Recipe, realize
from refsd.onnx.builder import Builder
from refsd.onnx.weights import is_said, weight

TYPES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "q8_0", "q4_0", "q4_1", "q4_k")


@pytest.mark.parametrize("kind", TYPES)
def test_a_weight_is_expanded_exactly(kind):
    tensor = realize(Recipe((5, 256), kind), f"weight/{kind}")
    b = Builder(kind)
    b.output(weight(b, "weight", tensor), "y")
    model = b.model()
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, {})[0], tensor.values().astype(np.float32))
    notes = {entry.key: entry.value for entry in model.metadata_props}
    if kind == "f32":
        assert not notes
    else:
        assert notes["weight.weight"].startswith(f"{kind}, " if kind not in ("q8_0", "q4_0") else f"{kind} as Deq")
    assert ("dequantized" in notes.get("weight.weight", "")) == (not is_said(kind) and kind != "f32")


def test_codes_of_four_bits_are_stored_as_four():
    tensor = realize(Recipe((4, 512), "q4_0"), "weight/size")
    b = Builder("q4_0")
    b.output(weight(b, "weight", tensor), "y")
    assert len(b.model().graph.initializer[0].raw_data) == 4 * 512 // 2
