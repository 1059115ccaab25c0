"""Bugs in functions that a case does not call are not tried: they make no difference."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.model.mutants import MUTANTS, Change, ChangedWeights
from refsd.judges.model_calls import Calls
from refsd.models import flux, mistral
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import stored

OF_FLUX = Change(replaced=((flux, "flux", None),))
OF_MISTRAL = Change(replaced=((mistral, "mistral", None),))


def test_a_bug_concerns_a_run_that_calls_its_function():
    calls = Calls([OF_FLUX, OF_MISTRAL], lambda: np.testing.assert_raises(TypeError, mistral.mistral))
    assert calls.concern(OF_MISTRAL) and not calls.concern(OF_FLUX)
    assert calls.concern(Change(replaced=OF_FLUX.replaced + OF_MISTRAL.replaced))
    assert calls.concern(Change()) and calls.concern(OF_FLUX._replace(rename=str.upper))
    assert calls.concern(Change(replaced=((flux, "another", None),)))


@pytest.mark.jitted
@pytest.mark.parametrize("name", ["mistral-small/mistral/padded", "taesd/tae-decoder/outliers"])
def test_what_is_not_tried_makes_no_difference(kind, monkeypatch, name):
    case = CASES[name]
    inputs = case.realize()
    idle = [bug for bug in MUTANTS if not kind._concerned(case, inputs, bug.change)]
    assert len(idle) > len(MUTANTS) // 2
    assert all(kind.wrong_answer(case, inputs, bug) is None for bug in idle)
    monkeypatch.setattr(kind, "_concerned", lambda *_: True)
    honest = kind._changed(case, inputs, Change(), FLOAT32)
    for bug in idle[::10]:
        wrong = kind.wrong_answer(case, inputs, bug)
        assert all(np.array_equal(wrong[output], y) for output, y in honest.items()), bug.name


def test_weights_that_no_bug_changes_are_known_without_a_run():
    weights = {"q.weight": stored(np.eye(2, 3, dtype=np.float32)), "k.weight": stored(np.ones((2, 3), np.float32))}
    assert ChangedWeights(weights, Change(rename=lambda name: "v.weight")).none_changed()
    assert ChangedWeights(weights, Change(revalue=lambda name, values: values.copy())).none_changed()
    assert not ChangedWeights(weights, Change(rename=lambda name: "k.weight")).none_changed()
    assert not ChangedWeights(weights, Change(arithmetic=Arithmetic)).none_changed()
