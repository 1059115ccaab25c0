"""The graph of a case means what the case means: in float64 only the float32 constants of the graph are off."""

import numpy as np
import onnx
import pytest

from refsd.engines.registry import find
from refsd.golden import operations
from refsd.golden.case import Case
from refsd.golden.operations import OPERATIONS
from refsd.golden.recipe import Recipe
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.onnx.case_model import case_model, refuses
from refsd.onnx.evaluate import evaluate, open_graph

CASES = [operation.cases[0] for operation in OPERATIONS.values() if refuses(operation.cases[0]) is None]


SCALARS = [
    Case("embedding", "embedding", {"ids": Recipe((), "i32", "token_ids", 0, n=3), "weight": Recipe((3, 8))}),
]


@pytest.mark.parametrize("case", SCALARS, ids=lambda case: case.op)
def test_a_scalar_stays_one(case, tmp_path):
    """NumPy's ascontiguousarray makes [1] of it, and the engine then answers [1, 8] for [8]."""
    inputs = case.realize()
    truth = operations.run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    found = find("onnxruntime")[0]
    assert found.engine is not None
    assert found.engine.run(case, inputs)["y"].shape == truth.shape
    assert inputs[next(iter(inputs))].storable().shape == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_the_graph_s_truth_is_the_case_s(case, tmp_path):
    inputs = case.realize()
    truth = operations.run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    built = case_model(case, inputs)
    onnx.save_model(built.model, tmp_path / "model.onnx")
    y = evaluate(open_graph(tmp_path / "model.onnx"), built.feeds).outputs["y"]
    assert y.dtype == np.float64
    # Constants: 1.702, frequencies, eps, scales. An angle of 1000 radians with a frequency's 2^-24 is 6e-5 off.
    off = 1e-4 if case.op == "timestep_embedding" else 1e-6
    assert np.abs(y - truth).max() <= off * np.abs(truth).max()
