"""A case adds nothing if others see its bugs and have its traits, in pairs too; the dearest of equals goes."""

import pytest

from refsd.cases import CASES
from refsd.golden.case import Case
from refsd.golden.mutants import Trial
from refsd.golden.recipe import Recipe
from refsd.golden.redundant_cases import standings, traits
from refsd.golden.verdict import Judgement

SEEN, MISSED = Judgement(False, 2.0, "rms", "wrong"), Judgement(True, 0.5, "rms", "")


def case(name, type="f32", rows=4, eps=1e-5, **recipe):
    return Case(name, "rms_norm", {"x": Recipe((rows, 64), type, **recipe)}, {"eps": eps})


def gone(*rows, **cost):
    """The cases that add nothing. rows: case, the bugs that it sees"""
    bugs = set().union(*(seen for _, seen in rows))
    trials = [Trial(case, bug, SEEN if bug in seen else MISSED) for case, seen in rows for bug in sorted(bugs)]
    return [each.case for each in standings(trials, cost) if not each.kept]


def test_of_two_equals_the_dearer_goes():
    a, b = (case("a"), {"eps", "gain"}), (case("b"), {"eps", "gain"})
    assert gone(a, b, a=1.0, b=2.0) == ["b"] and gone(a, b, a=2.0, b=1.0) == ["a"]


def test_a_bug_that_one_case_alone_sees_keeps_it():
    assert gone((case("a"), {"eps"}), (case("b"), {"eps", "gain"}), a=1.0, b=2.0) == ["a"]


@pytest.mark.parametrize(
    "other", [case("b", "f16"), case("b", rows=1), case("b", rows=200), case("b", eps=1e-6), case("b", exponent=-3)]
)
def test_a_trait_of_its_own_keeps_a_case(other):
    assert gone((case("a"), {"eps"}), (other, {"eps"})) == []


def test_a_pair_of_traits_keeps_a_case():
    """Each trait of the last is in one of the others; both together are not."""
    rows = [(case("a"), {"eps"}), (case("b", "f16"), {"eps"}), (case("c", rows=1), {"eps"})]
    last = case("d", "f16", rows=1)
    assert traits(last) <= set().union(*(traits(one) for one, _ in rows))
    assert gone(*rows, (last, {"eps"})) == []
    assert gone(*rows, (last, {"eps"}), (case("e", "f16", rows=1), {"eps"})) == ["d"]


def test_what_is_counted():
    first = CASES["rms_norm/f32/plain-x2x33x77"]
    (one,) = standings([Trial(first, "eps", SEEN), Trial(first, "gain", MISSED)], {})
    assert (one.case, one.op, one.kills, one.alone) == (first.name, "rms_norm", 1, ("eps",))
    assert one.kept and one.new == len(traits(first)) * (len(traits(first)) + 1) // 2
