"""An engine that deviates as a known engine does, undeclared: the deviation is its cause, alone or with others."""

import pytest
from msgspec.structs import replace

from refsd.cases import CASES
from refsd.golden import conform, verdict
from refsd.judges import judges
from refsd.judges.known_deviations import Noting, explaining
from refsd.judges.model import ModelJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.weights import recipes

pytestmark = pytest.mark.jitted  # whole models

EPS, GELU = DEVIATIONS["sdcpp/group-norm-eps"], DEVIATIONS["sdcpp/gelu-tanh"]
CASE = CASES["sd15/unet/quiet"]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    recipes.make(CASE.model, path)
    return lambda model, layout: path


class Deviating:
    name, version = "deviating", "1"

    def __init__(self, model_files, deviations):
        self.judge, self.arithmetic = ModelJudge(model_files), Arithmetic(FLOAT32, deviations)

    def refuses(self, case):
        return None

    def numerics(self, case):
        return FLOAT32

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        return self.judge.answer(case, inputs, self.arithmetic)


def test_undeclared_deviations_are_the_cause(model_files):
    judge = ModelJudge(model_files)
    runner = conform.Runner(
        judges(model_files), lambda case: judge.answer(case, case.realize(), Arithmetic(FLOAT64))
    )
    (result,) = conform.run(runner, [Deviating(model_files, (EPS, GELU))], [CASE])
    assert result.status == verdict.FAIL
    assert result.causes == (f"{EPS.what} ({EPS.name}), and {GELU.what} ({GELU.name})",)


def test_a_model_of_full_size_is_held_against_deviations_alone(model_files):
    """The case taken for one of full size: no known bug is tried."""
    judge = ModelJudge(model_files)
    case = replace(CASE, model=replace(CASE.model, tiny=False))
    inputs = case.realize()
    truth, honest = (judge.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    standard = conform.Standard(case, inputs, truth, honest, FLOAT32)
    found = judge.answer(case, inputs, Arithmetic(FLOAT32, (EPS,)))
    assert judge.explain(standard, found).causes == [f"{EPS.what} ({EPS.name})"]
    assert judge.explain(standard, {name: 1.5 * y for name, y in honest.items()}).causes == []


def test_only_deviations_that_make_a_difference_are_tried(model_files):
    noting = Noting(FLOAT32)
    ModelJudge(model_files).answer(CASE, CASE.realize(), noting)
    assert {deviation.name for deviation in noting.met} == {EPS.name, GELU.name}


def test_what_is_not_needed_is_left_out():
    a, b, c = list(DEVIATIONS.values())[:3]
    assert explaining((a, b, c), lambda some: a in some and c in some) == [
        f"{a.what} ({a.name}), and {c.what} ({c.name})"
    ]
    assert explaining((a, b, c), lambda some: some == (b,)) == [f"{b.what} ({b.name})"]
    assert explaining((a, b, c), lambda some: False) == []
    assert explaining((), lambda some: True) == []
