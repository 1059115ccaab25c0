"""Taps forced to the reference's tensors: every wrong operation stands alone, also behind one that gives NaN."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden import conform, verdict
from refsd.golden.engine import EngineFailure
from refsd.golden.judge import Judges
from refsd.judges.model import ModelJudge
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.weights import recipes

pytestmark = pytest.mark.jitted  # a whole model

CASE = CASES["clip-l/clip/ended"]


class Broken(Arithmetic):
    """The second layer norm gives NaN where `overflows`, the fourth has no eps to speak of."""

    def __init__(self, overflows):
        super().__init__(FLOAT32)
        self._overflows, self._calls = overflows, 0

    def layer_norm(self, x, weight=None, bias=None, eps=1e-5):
        self._calls += 1
        y = super().layer_norm(x, weight, bias, eps * (1e-2 if self._calls == 4 else 1))
        return y * np.nan if self._calls == 2 and self._overflows else y


class ForcedTaps(Taps):
    def __init__(self, forced):
        super().__init__(ops=True)
        self._forced = forced

    def record(self, name, value):
        value = super().record(name, value)
        own = next(reversed(self))
        return np.array(self._forced[own], value.dtype) if own in self._forced else value


class Engine:
    """An engine that can be forced. fails: not when it is"""

    name, version = "forced", "1"

    def __init__(self, judge, overflows=True, fails=False):
        self._judge, self._overflows, self._fails, self.asked = judge, overflows, fails, 0

    def refuses(self, case):
        return None

    def numerics(self, case):
        return FLOAT32

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        return self.run_tapped(case, inputs)[0]

    def run_tapped(self, case, inputs):
        return self._run(inputs, {})

    def can_force(self, case):
        return True

    def run_forced(self, case, inputs, forced):
        self.asked += 1
        if self._fails:
            raise EngineFailure("no room")
        return self._run(inputs, forced)

    def _run(self, inputs, forced):
        taps = ForcedTaps(forced)
        return self._judge.tapped(CASE, inputs, Broken(self._overflows), taps), dict(taps)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    file = recipes.make(CASE.model, tmp_path_factory.mktemp("model") / "clip.safetensors", "ldm")
    return ModelJudge(lambda model, layout: file)


@pytest.fixture(scope="module")
def judged(judge):
    truth = judge.answer(CASE, CASE.realize(), Arithmetic(FLOAT64))

    def run(engine):
        return conform.run(conform.Runner(Judges(judge), lambda case: truth), [engine], [CASE])[0]

    return run


def test_behind_an_overflow_the_other_bug_is_found_and_nothing_else(judge, judged):
    engine = Engine(judge)
    result = judged(engine)
    assert result.status == verdict.FAIL and engine.asked == 1
    forced = result.reason.rpartition("; ")[2]
    first, second = "text_model.encoder.layers.0.layer_norm2", "text_model.encoder.layers.1.layer_norm2"
    assert forced.startswith("forced to the reference's tensors, 2 of ") and forced.endswith(f"{first}, {second}")


def test_an_engine_that_cannot_when_it_is_asked_is_said(judge, judged):
    assert judged(Engine(judge, fails=True)).reason.endswith("forced to the reference's tensors, it fails: no room")


def test_an_honest_engine_is_not_asked(judge, judged):
    engine = Engine(judge)
    engine._run = lambda inputs, forced: (
        judge.tapped(CASE, inputs, Arithmetic(FLOAT32), taps := Taps(ops=True)),
        taps,
    )
    assert judged(engine).status == verdict.PASS and engine.asked == 0
