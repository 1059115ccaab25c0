"""Engines that sum in float64 and declare float32 are told so; engines of another order of sums are not."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.commands.precise_sums import precise_sums
from refsd.engines.reference import Reference
from refsd.golden.conform import Runner, run
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT32, FLOAT64

LINEAR = [case for name, case in CASES.items() if name.startswith("linear/f32/") and case.model is None]


class Engine:
    """A linear layer. total: sums the products of the last axis, in float64 or as float32."""

    name, version = "mine", "1"

    def __init__(self, total):
        self._total = total

    def refuses(self, case):
        x, weight = (np.prod(case.inputs[name].shape) for name in ("x", "weight"))
        return None if x * case.inputs["weight"].shape[0] < 2e6 and weight < 1e6 else "too long for this test"

    def numerics(self, case):
        return FLOAT32

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        x, weight = (inputs[name].values() for name in ("x", "weight"))
        y = self._total(x[..., None, :], weight)
        return {"y": (y + inputs["bias"].values() if "bias" in inputs else y).astype(np.float32)}


def in_double(a, b):
    return (a.astype(np.float64) * b).sum(-1)


def serial(a, b):
    return np.cumsum(a.astype(np.float32) * b.astype(np.float32), -1, dtype=np.float32)[..., -1]


def pairwise(a, b):
    return (a.astype(np.float32) * b.astype(np.float32)).sum(-1, dtype=np.float32)


def lines(engine, cases):
    truth = Reference(FLOAT64)
    runner = Runner(judges(), lambda case: truth.run(case, case.realize()), explains=False)
    results = run(runner, [engine], cases)
    assert all(r.conforms for r in results)
    return precise_sums(results, {"mine": "exec:./my engine", "refsd-float32": "refsd"})


@pytest.mark.parametrize("total", [serial, pairwise])
def test_another_order_of_float32_is_not_told(total):
    assert lines(Engine(total), LINEAR) == []


def test_sums_in_float64_are_told():
    (line,) = lines(Engine(in_double), LINEAR)
    assert line.startswith("mine: ") and "answers of linear have less than half of the error of float32" in line
    assert line.endswith("(float64?): `refsd profile 'exec:./my engine' --ops linear` tells what to declare")
    assert lines(Engine(in_double), LINEAR[:5]) == []  # too few


def test_the_reference_itself_is_not_told():
    assert lines(Reference(FLOAT32), LINEAR) == []
