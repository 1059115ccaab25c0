"""Engines of array libraries, without the libraries: what they take, what they are looked for by."""

import dataclasses

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines import jax as jax_engine
from refsd.engines import mlx as mlx_engine
from refsd.engines import tinygrad_tensor as tinygrad_engine
from refsd.engines.arrays.array_engine import ArrayEngine
from refsd.engines.jax import LIBRARY as JAX
from refsd.engines.mlx import LIBRARY as MLX
from refsd.engines.tinygrad_tensor import LIBRARY as TINYGRAD
from refsd.golden.operations import OPERATIONS
from refsd.numerics.profiles import TORCH_BF16, TORCH_F32
from refsd.numerics.tensor import stored

LIBRARIES = (JAX, MLX, TINYGRAD)
ENGINES = {"jax": jax_engine, "mlx": mlx_engine, "tinygrad": tinygrad_engine}


class FakeWorker:
    """Answers with zeros, and notes what it was asked."""

    def ask(self, header, tensors):
        self.header, self.tensors = header, tensors
        return {}, {"y": stored(np.zeros(3, np.float32))}


def engine(library, numerics=TORCH_F32):
    return ArrayEngine(library, library.name, "1", numerics.storage, numerics, FakeWorker())


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_tables_name_operations(library):
    for table in (library.functions, library.refusals, library.rounding, library.rounded):
        assert set(table) <= set(OPERATIONS)
    assert set(library.refusals) | set(library.rounding) | set(library.rounded) <= set(library.functions)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_float32_takes_nine_tenths_of_the_scalar_cases(library):
    nobodys = {"dequantize", "attention_int8", "attention_softcap"}
    cases = [case for case in CASES.values() if case.op in OPERATIONS.keys() - nobodys]
    scalar = [case for case in cases if all(r.type in ("f32", "f16", "i32") for r in case.inputs.values())]
    taken = [case for case in scalar if engine(library).refuses(case) is None]
    assert len(taken) > 0.9 * len(scalar)


def test_blocks_and_what_a_function_lacks_are_refused():
    assert "reads no q8_0 weights" in engine(JAX).refuses(CASES["linear/q8_0/tokens-x77x320-o33"])
    assert "no sinks" in engine(JAX).refuses(CASES["attention/f32/sinks-b2-l20-j33-h3-d32"])
    assert engine(MLX).refuses(CASES["attention/f32/sinks-b2-l20-j33-h3-d32"]) is None
    softmax = CASES["softmax/f32/plain-x33x77"]
    assert engine(JAX).refuses(softmax) is None
    assert "rounds between its steps" in engine(JAX, TORCH_BF16).refuses(softmax)


def test_numerics_are_the_engines_but_where_a_function_differs():
    one_pass = engine(JAX).numerics(CASES["layer_norm/f32/awkward-x33x77"])
    assert one_pass == dataclasses.replace(TORCH_F32, one_pass=("group_norm", "layer_norm"))
    assert engine(JAX).numerics(CASES["softmax/f32/plain-x33x77"]) == TORCH_F32


def test_a_case_reaches_the_worker_whole():
    one = engine(MLX, TORCH_BF16)
    case = CASES["linear/f32/awkward-x2x33x77-o20"]
    assert one.run(case, case.realize())["y"].shape == (3,)
    asked = one._worker
    assert asked.header == {"op": "linear", "params": {}, "dtype": "bfloat16"}
    assert set(asked.tensors) == set(case.inputs)


@pytest.mark.parametrize("name", ENGINES)
def test_a_library_that_is_missing_says_how_to_get_it(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    (found,) = ENGINES[name].find()
    assert found.engine is None and f"--extra {name}" in found.why_not
    assert ENGINES[name].devices() == []


def test_a_precision_or_device_that_nobody_knows(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: object())
    assert "expected jax:default or jax:highest" in jax_engine.find("quick")[0].why_not
    assert "expected one of cpu" in jax_engine.find(device="vulkan")[0].why_not
    assert "expected mlx alone" in mlx_engine.find("quick")[0].why_not


def test_tinygrad_needs_a_compiler(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: object())
    monkeypatch.setattr("shutil.which", lambda program: None)
    assert "clang" in tinygrad_engine.find()[0].why_not
