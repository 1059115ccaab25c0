"""Activations in blocks of codes: other roundings fail and are named, honest ones raise no alarm."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.block_activations import OTHERWISE, block_of, moved_otherwise
from refsd.golden.judge import Standard
from refsd.golden.metrics import measure
from refsd.golden.operations import OPERATIONS
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, INT8_GROUPS, ONNXRUNTIME_Q8, OPENVINO_Q8
from refsd.numerics.quantization import Quantization
from refsd.numerics.tensor import StoredTensor, stored

_LINEAR = OPERATIONS["linear"]
_TRUNCATED, _OF_128 = OTHERWISE


def _standard(inputs, numerics, case=CASES["linear/q8_0/tokens-x77x320-o33"]) -> Standard:
    truth, honest = ({"y": _LINEAR.answer(Arithmetic(n), inputs, {})} for n in (FLOAT64, numerics))
    return Standard(case, inputs, truth, honest, numerics)


def _answer(inputs, x) -> dict[str, np.ndarray]:
    return {"y": _LINEAR.answer(Arithmetic(FLOAT32), {**inputs, "x": stored(x.astype(np.float32))}, {})}


def _engine(x: np.ndarray, bug: str) -> np.ndarray:
    """Quantise in float32 as C does: x times the scale's reciprocal, the scale stored in float16."""
    rows = x.astype(np.float32).reshape(-1, 32)
    d = np.abs(rows).max(axis=1, keepdims=True) / np.float32(128 if bug == _OF_128 else 127)
    v = rows * np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    codes = np.trunc(v) if bug == _TRUNCATED else np.copysign(np.floor(np.abs(v) + 0.5), v)
    return (np.clip(codes, -128, 127) * d.astype(np.float16)).reshape(x.shape)


@pytest.mark.parametrize("numerics", [GGML_CPU, OPENVINO_Q8, ONNXRUNTIME_Q8], ids=lambda n: n.name)
@pytest.mark.parametrize("bug", OTHERWISE)
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_another_rounding_fails_and_is_named(numerics, bug, kind):
    case = CASES[f"linear/{kind}/tokens-x77x320-o33"]
    standard = _standard(case.realize(), numerics, case)
    judges = OperationJudge()
    actual = _answer(standard.inputs, _engine(standard.inputs["x"].values(), bug))
    judged = judge(judges.measure(standard, actual))
    assert judged.margin > 2 and judged.reason.startswith(f"y: {bug}: ")
    assert judges.explain(standard, actual).causes == [bug]


@pytest.mark.parametrize("numerics", [GGML_CPU, OPENVINO_Q8], ids=lambda n: n.name)
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_an_engine_that_rounds_ties_away_passes_every_case(numerics, kind):
    for case in (case for name, case in CASES.items() if name.startswith(f"linear/{kind}/")):
        standard = _standard(case.realize(), numerics, case)
        actual = _answer(standard.inputs, _engine(standard.inputs["x"].values(), ""))
        judged = judge(OperationJudge().measure(standard, actual))
        assert judged.passed and judged.margin < 0.5, (case.name, judged)


def _random(seed: int, rows=9, K=160, out=20) -> dict[str, StoredTensor]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (out, K // 32, 32)).astype(np.int8)
    d = np.full((out, K // 32, 1), 2.0**-9, np.float16)
    weight = np.concatenate([d.view(np.uint8), codes.view(np.uint8)], axis=2).reshape(out, -1)
    x = rng.standard_normal((rows, K)).astype(np.float32)
    return {"x": stored(x), "weight": StoredTensor("q8_0", (out, K), weight)}


def test_honest_sizes_are_as_large_as_derived():
    """Of 100 draws, the sum over honest errors in units of its derived deviation: deviation 1, mean 0."""
    sizes = {name: [] for name in OTHERWISE}
    for seed in range(100):
        inputs = _random(seed)
        truth, honest = (_LINEAR.answer(Arithmetic(n), inputs, {}) for n in (FLOAT64, GGML_CPU))
        for pattern in _LINEAR.bound_of(GGML_CPU, inputs, {}, truth).patterns:
            sizes[pattern.change].append(float(np.sum(pattern.along * (honest - truth))) / pattern.error)
    assert np.std(sizes[_TRUNCATED]) == pytest.approx(1, abs=0.2)
    assert abs(np.mean(sizes[_TRUNCATED])) < 0.3
    # The largest numbers of blocks, of which this is made, hardly move.
    assert np.std(sizes[_OF_128]) < 1.2


def test_repeated_numbers_raise_no_alarm():
    """Codes of equal numbers err alike: an engine that does not round at all, and one of the same codes, pass."""
    inputs = _random(3)
    x = np.where(np.arange(160) % 4 == 0, 1.0, 0.3031).astype(np.float32) * np.ones((9, 1), np.float32)
    inputs["x"] = stored(x * np.sign(np.random.default_rng(1).standard_normal(x.shape)).astype(np.float32))
    standard = _standard(inputs, GGML_CPU)
    for answer in (standard.honest, _answer(inputs, inputs["x"].values())):
        assert judge(OperationJudge().measure(standard, answer)).passed
    moved = dict(moved_otherwise(inputs["x"].values(), 32))[_TRUNCATED]
    assert not np.allclose(moved, inputs["x"].values(), atol=1e-4)


def test_which_activations_have_codes():
    assert [block_of(t) for t in ("q8_0", "q8_1", "q8_k", "f16", "tf32", None)] == [32, 32, 256, 0, 0, 0]
    assert block_of(INT8_GROUPS) == 32 and block_of(Quantization("int8", "row")) == 0
    assert block_of(Quantization("int8", "none", block=32, block_scale="f32", rounding="zero")) == 0


def test_an_output_without_such_activations_has_no_patterns():
    inputs = CASES["linear/q8_0/tokens-x77x320-o33"].realize()
    truth = _LINEAR.answer(Arithmetic(FLOAT64), inputs, {})
    bound = _LINEAR.bound_of(FLOAT32, inputs, {}, truth)
    assert bound.patterns == () and measure("y", truth, truth, truth, bound, -1).along == ()
