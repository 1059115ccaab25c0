"""Judge the answers of every known bug to a case: mutation testing of the cases.

A case that no mutant fails tests nothing, and a mutant that no case fails is a bug that gets through.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.judge import Judge, Mutant, Standard
from refsd.golden.verdict import Judgement, judge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64


class Trial(NamedTuple):
    """A mutant's answer to a case, judged. killed: the verdict was "fail"."""

    case: Case
    mutant: str
    judgement: Judgement

    @property
    def killed(self) -> bool:
        return not self.judgement.passed


def try_all(kind: Judge, case: Case, mutants: Sequence[Mutant] | None = None) -> list[Trial]:
    """Judge the answers of every mutant, or of some, to a case, as of an engine that declares float32."""
    inputs = case.realize()
    truth, honest = (kind.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    standard = Standard(case, inputs, truth, honest, FLOAT32)
    trials = []
    for mutant in kind.mutants(case) if mutants is None else mutants:
        wrong = kind.wrong_answer(case, inputs, mutant)
        # A bug that happens to give the honest bits is no bug in this case.
        if wrong is None or all(np.array_equal(wrong[name], y) for name, y in honest.items()):
            continue
        trials.append(Trial(case, mutant.name, judge(kind.measure(standard, wrong))))
    return trials


def kill_table(trials: list[Trial]) -> str:
    """Return a Markdown table: for each mutant, how many of the cases that it applies to fail it."""
    lines = ["| operation | mutant | cases that fail it under float32 | of |", "|---|---|---|---|"]
    rows: dict[tuple[str, str], list[bool]] = {}
    for trial in trials:
        rows.setdefault((trial.case.op, trial.mutant), []).append(trial.killed)
    lines += [f"| {op} | {mutant} | {sum(killed)} | {len(killed)} |" for (op, mutant), killed in rows.items()]
    return "\n".join(lines) + "\n"
