"""Find the cases that add nothing to the others of their operation.

No known bug is seen by such a case alone, and no type, data set, parameter or class of sizes is its own.

A bug that nobody has listed is most likely seen where two traits meet (a type and an odd width, a stride and a
dilation), so pairs of traits count as well as single ones.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

from refsd.golden.case import Case
from refsd.golden.mutants import Trial
from refsd.golden.shared_traits import features

# Widths at which vectorised or blocked code changes its path.
_BLOCKS = (8, 32, 256)
_SIZES = (16, 128, 1024)


class Standing(NamedTuple):
    """What a case adds to the others of its operation.

    kills: how many known bugs it sees
    alone: the known bugs that it sees, and no other case that is kept
    new:   how many traits, and pairs of traits, only this case has among those that are kept
    kept:  False if it adds nothing
    """

    case: str
    op: str
    kills: int
    alone: tuple[str, ...]
    new: int
    kept: bool


def traits(case: Case) -> frozenset[str]:
    """Return the single traits of a case, as text."""
    of = features(case)
    found = {f"{name} = {value}" for name, value in of.labels.items()}
    for name, n in of.numbers.items():
        found.add(f"{name} is {'1' if n == 1 else f'in class {sum(n > size for size in _SIZES)}'}")
        found.add(f"{name} is a multiple of {max((block for block in _BLOCKS if n % block == 0), default=1)}")
    for name, ratio in of.ratios.items():
        found.add(f"{name} is {'1' if ratio == 1 else 'whole' if ratio.denominator == 1 else 'broken'}")
    found |= {f"{name}: {value}" for name, value in of.sides.items()}
    found |= {f"{name} is of size {r.exponent}, {r.offset}" for name, r in case.inputs.items()}
    return frozenset(found)


def standings(trials: Iterable[Trial], cost: Mapping[str, float]) -> list[Standing]:
    """Return the standing of each case. cost: seconds of each case; the dearest goes first where either could"""
    cases: dict[str, Case] = {}
    killed: dict[str, set[str]] = {}
    for trial in trials:
        cases[trial.case.name] = trial.case
        of = killed.setdefault(trial.case.name, set())
        of |= {trial.mutant} if trial.killed else set()
    found = []
    for op in dict.fromkeys(case.op for case in cases.values()):
        found += _of_operation([case for case in cases.values() if case.op == op], killed, cost)
    return found


def _of_operation(cases: list[Case], killed: Mapping[str, set[str]], cost: Mapping[str, float]) -> list[Standing]:
    each = {case.name: sorted(traits(case)) for case in cases}
    pairs = {name: {*zip(of, strict=True), *combinations(of, 2)} for name, of in each.items()}
    killers = Counter(mutant for case in cases for mutant in killed[case.name])
    owners = Counter(pair for case in cases for pair in pairs[case.name])
    found = {}
    for case in sorted(cases, key=lambda case: cost.get(case.name, 0.0), reverse=True):
        alone = sorted(mutant for mutant in killed[case.name] if killers[mutant] == 1)
        new = sum(owners[pair] == 1 for pair in pairs[case.name])
        kept = bool(alone or new)
        if not kept:
            killers.subtract(killed[case.name])
            owners.subtract(pairs[case.name])
        found[case.name] = Standing(case.name, case.op, len(killed[case.name]), tuple(alone), new, kept)
    return [found[case.name] for case in cases]
