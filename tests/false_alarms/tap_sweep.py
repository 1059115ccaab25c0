"""False alarms by taps: honest engines on every tiny model, on several draws of each case's inputs.

    python tests/false_alarms/tap_sweep.py --seeds 10 --cases 'flux*' --engines 'torch*' 'backwards-*'

The engines are refsd under its own numerics, NumPy that adds up backwards, and torch, in both layouts, if it is
there. Prints a line for each answer, one for each tap that is wrong, and a table. Exit code 1 if a tap is wrong.
"""

import argparse
import fnmatch
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import honest_engines
import numpy as np
from msgspec.structs import replace

from refsd.cases import CASES
from refsd.engines.torch.engine import find
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure, ModelFiles, TappedEngine
from refsd.golden.judge import Standard
from refsd.golden.verdict import NO_WITNESS, judge, judge_output
from refsd.judges.model import ModelJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import PROFILES, Numerics
from refsd.weights.recipe_files import RecipeFiles


class HasTaps(Protocol):
    """What the sweep asks of an engine, which golden/engine.py describes."""

    name: str

    def refuses(self, case: Case) -> str | None: ...
    def numerics(self, case: Case) -> Numerics: ...
    def run_tapped(self, case: Case, inputs) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]: ...


class Traced(NamedTuple):
    """An answer. taps: how many were judged; alarms: why answer or taps are wrong; worst: largest margin"""

    case: str
    engine: str
    taps: int
    alarms: list[str]
    worst: float


def drawn(case: Case, seed: int) -> Case:
    """The case with other inputs, which come from its name; its own for seed 0."""
    return replace(case, name=f"{case.name}@{seed}") if seed else case


def engines(kind: ModelJudge, give: ModelFiles) -> Iterator[HasTaps]:
    yield from honest_engines.engines(kind)
    for layout in (None, "channels_last"):
        found = (search.engine for search in find(layout, model_files=give))
        yield from (engine for engine in found if isinstance(engine, TappedEngine))


class Question:
    """A case's inputs, with the reference's answer under each numerics that is asked for, computed once."""

    def __init__(self, kind: ModelJudge, case: Case):
        self.kind, self.case, self.inputs = kind, case, case.realize()
        self.answer = functools.cache(
            lambda numerics: kind.answer(case, self.inputs, Arithmetic(PROFILES[numerics]))
        )

    def traced(self, engine: HasTaps) -> Traced:
        case, inputs, numerics = self.case, self.inputs, engine.numerics(self.case)
        outputs, taps = engine.run_tapped(case, inputs)
        standard = Standard(case, inputs, self.answer("float64"), self.answer(numerics.name), numerics)
        trace = self.kind.trace(case, inputs, {**taps, **outputs}, numerics)
        judged = [*map(judge_output, trace.taps), judge(self.kind.measure(standard, outputs))]
        seen = [one for one in judged if one.criterion != NO_WITNESS]
        alarms = [one.reason for one in seen if not one.passed]
        worst = max((one.margin for one in seen), default=0.0)
        return Traced(case.name, engine.name, len(trace.taps), alarms, worst)


def all_traced(
    give: ModelFiles, cases: list[Case], chosen: Callable[[str], bool], seeds: range
) -> Iterator[Traced]:
    kind = ModelJudge(give)
    asked = [engine for engine in engines(kind, give) if chosen(engine.name)]
    for seed in seeds:
        for case in (drawn(case, seed) for case in cases):
            question = Question(kind, case)
            for engine in asked:
                if engine.refuses(case) is None:
                    with suppress(EngineFailure):  # a model that the engine cannot load: conform reports it
                        yield question.traced(engine)


def table(answers: list[Traced]) -> Iterator[str]:
    """Yield a line for each engine and one for all: cases with their seeds, taps, alarms, the largest margin."""
    names = dict.fromkeys(each.engine for each in answers)
    for name, of in [*((name, {name}) for name in names), ("all", set(names))]:
        those = [each for each in answers if each.engine in of]
        taps, alarms = sum(each.taps for each in those), sum(len(each.alarms) for each in those)
        worst = max((each.worst for each in those), default=0.0)
        yield f"{name}: {len(those)} answers, {taps} taps, {alarms} wrong, worst margin {worst:.2f}"


def matches(name: str, globs: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def main(arguments: list[str], show: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cases", nargs="+", default=["*"], help="globs")
    parser.add_argument("--engines", nargs="+", default=["*"], help="globs")
    given = parser.parse_args(arguments)
    tiny = [case for case in CASES.values() if case.model is not None and case.model.tiny]
    cases = [case for case in tiny if matches(case.name, given.cases)]
    chosen = functools.partial(matches, globs=given.engines)
    seeds = range(given.first, given.first + given.seeds)
    answers: list[Traced] = []
    with tempfile.TemporaryDirectory() as folder:
        for each in all_traced(RecipeFiles(Path(folder)), cases, chosen, seeds):
            answers.append(each)
            show(f"{each.case} {each.engine}: {each.taps} taps, worst margin {each.worst:.2f}")
            for reason in each.alarms:
                show(f"  ALARM {reason}")
    for line in table(answers):
        show(line)
    return 1 if not answers or any(each.alarms for each in answers) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
