"""Activations in few bits, not declared: seen and named with their scale. Declared: judged by their own bound."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from naming import named

from refsd.cases import select
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.mutations import answer
from refsd.judges import judges
from refsd.numerics.profiles import FP8_TENSOR, INT8_ROWS, TORCH_BF16, TORCH_F16, TORCH_F16_SAGE, TORCH_F32

_CASES = select("linear/f32/*")
_ROUND = {
    "f8_e4m3": (448, lambda v: v.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)),
    "int8": (127, np.rint),
}


class Engine:
    """Round x to few bits in float32, and multiply as NumPy does."""

    name, version = "few bits", "1"

    def __init__(self, how, says):
        self.how, self.says = how, says

    def refuses(self, case):
        return None

    def numerics(self, case):
        return self.says

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        x, weight = (inputs[name].values().astype(np.float32) for name in ("x", "weight"))
        largest, to_codes = _ROUND[self.how.type]
        axis = -1 if self.how.scale == "row" else None
        scale = np.abs(x).max(axis=axis, keepdims=True) / np.float32(largest)
        y = (to_codes(x / scale) * scale) @ weight.T
        return {"y": y + inputs["bias"].values() if "bias" in inputs else y}


def _results(engine):
    truth = Reference()
    runner = conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), [])
    return conform.run(runner, [engine], _CASES)


_RULES = [replace(rule, scale=scale) for rule in (FP8_TENSOR, INT8_ROWS) for scale in ("tensor", "row")]


@pytest.mark.parametrize("how", _RULES, ids=str)
@pytest.mark.parametrize("says", [TORCH_F32, TORCH_BF16], ids=lambda n: n.name)
def test_not_declared_they_are_named(how, says):
    wrong = [r for r in _results(Engine(how, says)) if r.status == "fail"]
    assert len(wrong) >= 2 and all(r.causes for r in wrong)
    assert all(f"activations rounded to {how}" in r.causes for r in wrong)
    if says is TORCH_F32:
        assert len(wrong) == len(_CASES)
        # Where rows differ in size it is this scale and no other.
        assert any(r.causes[0] == f"activations rounded to {how}" and len(r.causes) == 1 for r in wrong)


@pytest.mark.parametrize("how", [FP8_TENSOR, INT8_ROWS], ids=str)
def test_declared_they_conform(how):
    says = replace(TORCH_F32, name="mine", activations={"f32": how})
    assert [(r.case, r.reason) for r in _results(Engine(how, says)) if not r.conforms] == []


class _Sage(Reference):
    """Attends as SageAttention does, and declares torch's float16."""

    name = "sage"

    def __init__(self):
        super().__init__(TORCH_F16_SAGE)

    def numerics(self, case):
        return TORCH_F16


def test_attention_in_int8_that_is_not_declared():
    truth = Reference()
    runner = conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), [])
    results = conform.run(runner, [_Sage()], select("attention/*"))
    wrong = [r for r in results if r.status == "fail"]
    assert len(wrong) >= 3
    cause = f"scores are products of {TORCH_F16_SAGE.scores}"
    assert [r.case for r in wrong if r.causes[:1] != (cause,)] == []


def test_parts_of_rows_that_whole_tiles_do_not_fill():
    """An int8 product over 160 numbers in two parts of 80, each read as two tiles of 64."""

    def wrong(op, inputs, params):
        wide = {}
        for name in ("x", "weight"):
            t = inputs[name]
            memory = np.append(t.data.ravel(), np.zeros(128, t.data.dtype))
            rows = [np.concatenate([memory[160 * i + at :][:128] for at in (0, 80)]) for i in range(len(t.data))]
            wide[name] = t._replace(shape=(len(rows), 256), data=np.stack(rows))
        return answer(op, {**inputs, **wide}, params)

    told = named("linear_int8/rows-x20x160-o33", wrong)
    assert told[0] == "2 parts of each row are read on to whole 64s of numbers", told
