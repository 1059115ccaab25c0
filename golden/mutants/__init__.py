"""Known bugs, to test the cases with: each operation answered wrongly, the way engines have done it.

A case that no mutant fails has nothing to say, and a mutant that no case fails is a bug that gets
through. A mutant is a float32 engine in every other respect.
"""

from typing import NamedTuple

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.bounds import bound
from refsd.golden.case import Case
from refsd.golden.metrics import measure
from refsd.golden.mutants import (
    activations,
    adapters,
    attention,
    blocks,
    convolution,
    layout,
    norms,
    positions,
    products,
    resampling,
)
from refsd.golden.mutants.mutant import Mutant
from refsd.golden.numerics import FLOAT32, FLOAT64
from refsd.golden.operations import OPERATIONS, complete, run
from refsd.golden.verdict import Judgement, judge

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    **products.MUTANTS,
    **convolution.MUTANTS,
    **norms.MUTANTS,
    **activations.MUTANTS,
    **attention.MUTANTS,
    **positions.MUTANTS,
    **resampling.MUTANTS,
    **layout.MUTANTS,
    **blocks.MUTANTS,
    **adapters.MUTANTS,
}


class Trial(NamedTuple):
    """A case put to a mutant. killed: the verdict was "fail"."""

    case: str
    mutant: str
    killed: bool
    judgement: Judgement


def try_all(case: Case) -> list[Trial]:
    """Put a case to every mutant of its operation, judged as an engine that declares float32."""
    inputs = case.realize()
    params = complete(case.op, inputs, case.params)
    truth = run(case.op, Arithmetic(FLOAT64), inputs, params)["y"]
    honest = run(case.op, Arithmetic(FLOAT32), inputs, params)["y"]
    limits = bound(case.op, FLOAT32, inputs, params, truth)
    trials = []
    for mutant in MUTANTS[case.op]:
        with np.errstate(all="ignore"):
            wrong = mutant.wrong(case.op, inputs, params)
        # A bug that happens to give the honest bits is no bug in this case.
        if wrong is None or np.array_equal(wrong, honest):
            continue
        judged = judge([measure("y", wrong, truth, honest, limits, OPERATIONS[case.op].channel)])
        trials.append(Trial(case.name, mutant.name, not judged.passed, judged))
    return trials


def kill_table(trials: list[Trial]) -> str:
    """Markdown: for each mutant, how many of the cases that it applies to fail it."""
    lines = ["| operation | mutant | cases that fail it | of |", "|---|---|---|---|"]
    rows: dict[tuple[str, str], list[bool]] = {}
    for trial in trials:
        rows.setdefault((trial.case.partition("/")[0], trial.mutant), []).append(trial.killed)
    lines += [f"| {op} | {mutant} | {sum(killed)} | {len(killed)} |" for (op, mutant), killed in rows.items()]
    return "\n".join(lines) + "\n"
