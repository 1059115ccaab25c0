"""Why an operation does not conform: the known bugs under which the reference says what the engine says."""

from collections.abc import Mapping

import numpy as np

from refsd.golden.bounds import Bound, bound
from refsd.golden.case import Case
from refsd.golden.metrics import measure
from refsd.golden.mutants import MUTANTS
from refsd.golden.numerics import Numerics
from refsd.golden.operations import OPERATIONS, complete
from refsd.golden.rounding import unit
from refsd.golden.tensor import StoredTensor
from refsd.golden.verdict import judge

Answer = Mapping[str, np.ndarray]


def causes(
    case: Case, inputs: Mapping[str, StoredTensor], found: Answer, truth: Answer, honest: Answer, numerics: Numerics
) -> list[str]:
    """The names of the operation's mutants (mutants/) that agree with an engine's answer.

    found:  of the engine; truth: in float64; honest: under its numerics

    A mutant answers in float32. What the engine's numerics add to that is taken from the honest run: the mutant's
    answer and that run's error stand for it, within the bound that the right answer has, and 8 units in the last
    place of the wrong one.
    """
    y = found.get("y")
    if case.op not in MUTANTS or y is None or y.shape != truth["y"].shape:
        return []
    params = complete(case.op, inputs, case.params)
    limits = bound(case.op, numerics, inputs, params, truth["y"])
    error = honest["y"].astype(np.float64) - truth["y"]
    u = max(unit(numerics.compute_dtype), unit(numerics.storage_dtype))
    named = []
    for mutant in MUTANTS[case.op]:
        with np.errstate(all="ignore"):
            wrong = mutant.wrong(case.op, inputs, params)
        if wrong is None or wrong.shape != y.shape or np.array_equal(wrong, honest["y"]):
            continue
        wrong = wrong.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            near, size = wrong + error, np.abs(wrong) + np.sqrt(np.mean(wrong**2))
        room = Bound(limits.limit + 8 * u * size, limits.spread + u * size)
        if judge([measure("y", y, wrong, near, room, OPERATIONS[case.op].channel)]).passed:
            named.append(mutant.name)
    return named
