"""An output that fails beside a lucky honest run is judged by runs with random roundings."""

import pytest

from refsd.cases import CASES
from refsd.golden.judge import Standard
from refsd.golden.metrics import channel_axis, measure
from refsd.golden.verdict import judge, judge_output
from refsd.judges import judges
from refsd.judges.model import ModelJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.weights.model_files import model_files

pytestmark = pytest.mark.jitted  # a whole model

_LUCK = 8


@pytest.fixture(scope="module")
def judged():
    """The judge, a standard whose honest run errs an eighth of what it may, and what another engine answers."""
    case = CASES["sd15/clip/short"]
    inputs, judge_of = case.realize(), judges(model_files).of(case)
    truth, honest = (judge_of.answer(case, inputs, Arithmetic(n)) for n in (FLOAT64, FLOAT32))
    lucky = {name: truth[name] + (y - truth[name]) / _LUCK for name, y in honest.items()}
    return judge_of, Standard(case, inputs, truth, lucky, FLOAT32), honest


def test_an_honest_engine_beside_a_lucky_run_passes(judged):
    judge_of, standard, honest = judged
    for name, y in honest.items():
        m = measure(name, y, standard.truth[name], standard.honest[name], None, channel_axis(y))
        assert judge_output(m).margin > 1
    assert judge(judge_of.measure(standard, honest)).margin < 0.8


def test_a_judge_of_living_models_computes_with_its_own_weights():
    class Living(ModelJudge):
        def _module(self, case, inputs, arithmetic, cache=None):
            raise LookupError("its own")

    case = CASES["sd15/clip/short"]
    with pytest.raises(LookupError, match="its own"):
        Living().answer(case, case.realize(), Arithmetic(FLOAT64))


@pytest.mark.parametrize("gain", [1 + 2e-5, 1.001])
def test_what_is_wrong_stays_wrong(judged, gain):
    judge_of, standard, honest = judged
    assert not judge(judge_of.measure(standard, {name: gain * y for name, y in honest.items()})).passed
