from refsd.cases import CASES
from refsd.causes.model.rearranged import joined_otherwise
from refsd.golden.judge import Standard
from refsd.judges.model import ModelJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.weights.model_files import model_files


def test_exchanged_parts_of_a_join_are_named_from_the_outputs_alone():
    """FLUX joins text and picture in each double block, and once before the single blocks."""
    case, judge = CASES["flux-dev/flux/first-step"], ModelJudge(model_files)
    inputs = case.realize()
    bugs = [*joined_otherwise(lambda change: judge._changed(case, inputs, change, FLOAT32))]
    assert [bug.name.rpartition(": ")[2] for bug in bugs[:2]] == [
        "the second (15 long), then the first (7 long)"
    ] * 2
    truth, honest = (judge.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    wrong = judge._changed(case, inputs, bugs[0].change, FLOAT32)
    assert wrong is not None
    assert judge.explain(Standard(case, inputs, truth, honest, FLOAT32), wrong).causes == [bugs[0].name]
