"""Inject the bugs of a list into an engine, and tell what the judge says of each: seen, placed, named.

    uv run python tests/bugs/inject.py bugs.json
    uv run python tests/bugs/inject.py bugs.json --id act-01 --numerics ggml-cpu --json
    uv run python tests/bugs/inject.py bugs.json --splits 5 --seed 7
    uv run python tests/bugs/inject.py bugs.json --forget --splits 5 --seed 7
    uv run python tests/bugs/inject.py bugs.json --ablate [--lists]
    uv run python tests/bugs/inject.py --held-out
    uv run python tests/bugs/inject.py --held-out fresh    # or: second, third, ... twenty-first

bugs.json: a list of objects with "id" and "level". Injections stand in the injected_*.py of this folder, by id.
"""

import argparse
import functools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from ablation import finder_of, marked, unmarked, worth
from eighteenth import EIGHTEENTH
from eighth import EIGHTH
from eleventh import ELEVENTH
from fifteenth import FIFTEENTH
from fifth import FIFTH
from forgetting import bare, forgotten, listed
from fourteenth import FOURTEENTH
from fourth_stages import FOURTH
from fresh_models import FRESH_MODELS
from fresh_operations import FRESH_OPERATIONS
from fresh_stages import FRESH_STAGES
from fresh_steps import FRESH_STEPS
from held_out import HeldOut, injections, levels, with_cases
from held_out_batches import HELD_OUT_BATCHES
from held_out_later import HELD_OUT_LATER
from held_out_models import HELD_OUT_MODELS
from held_out_operations import HELD_OUT_OPERATIONS
from held_out_products import HELD_OUT_PRODUCTS
from held_out_stages import HELD_OUT_STAGES
from held_out_stages_later import HELD_OUT_STAGES_LATER
from held_out_steps import HELD_OUT_STEPS
from injected_files import FILES
from injected_models import MODELS
from injected_operations import OPERATIONS
from injected_products import PRODUCTS
from injected_stages import STAGES
from injected_steps import STEPS
from injection import Injected, Injection
from mechanisms import Named, splits
from nineteenth import NINETEENTH
from ninth import NINTH
from other_words import OTHER_WORDS
from second_models import SECOND_MODELS
from second_operations import SECOND_OPERATIONS
from second_stages import SECOND_STAGES
from seventeenth import SEVENTEENTH
from seventh import SEVENTH
from since_operations import SINCE_OPERATIONS
from since_steps import SINCE_STEPS
from sixteenth import SIXTEENTH
from sixth import SIXTH
from tenth import TENTH
from third_models import THIRD_MODELS
from third_operations import THIRD_OPERATIONS
from third_stages import THIRD_STAGES
from thirteenth import THIRTEENTH
from twelfth import TWELFTH
from twentieth import TWENTIETH
from twenty_first import TWENTY_FIRST

from refsd.cases import CASES, select
from refsd.engines.reference import Reference
from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.golden.conform import Runner, run
from refsd.golden.engine import ModelFiles
from refsd.golden.report import Result
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.weights.model_files import model_files

HELD_OUT: dict[str, HeldOut] = {
    **HELD_OUT_OPERATIONS,
    **HELD_OUT_PRODUCTS,
    **HELD_OUT_MODELS,
    **HELD_OUT_LATER,
    **HELD_OUT_STAGES,
    **HELD_OUT_STEPS,
    **HELD_OUT_STAGES_LATER,
    **HELD_OUT_BATCHES,
}
FRESH: dict[str, HeldOut] = {**FRESH_OPERATIONS, **FRESH_MODELS, **FRESH_STEPS, **FRESH_STAGES}
SECOND: dict[str, HeldOut] = {**SECOND_OPERATIONS, **SECOND_MODELS, **SECOND_STAGES}
THIRD: dict[str, HeldOut] = {**THIRD_OPERATIONS, **THIRD_MODELS, **THIRD_STAGES}
SINCE = {**SINCE_OPERATIONS, **SINCE_STEPS}
HELD_OUT_SETS = {
    "earlier": HELD_OUT,
    "fresh": FRESH,
    "second": SECOND,
    "third": THIRD,
    "fourth": FOURTH,
    "fifth": FIFTH,
    "sixth": SIXTH,
    "seventh": SEVENTH,
    "eighth": EIGHTH,
    "ninth": NINTH,
    "tenth": TENTH,
    "eleventh": ELEVENTH,
    "twelfth": TWELFTH,
    "thirteenth": THIRTEENTH,
    "fourteenth": FOURTEENTH,
    "fifteenth": with_cases(FIFTEENTH, SINCE),
    "sixteenth": with_cases(SIXTEENTH, SINCE),
    "seventeenth": with_cases(SEVENTEENTH, SINCE),
    "eighteenth": with_cases(EIGHTEENTH, SINCE),
    "nineteenth": with_cases(NINETEENTH, SINCE),
    "twentieth": with_cases(TWENTIETH, SINCE),
    "twenty-first": with_cases(TWENTY_FIRST, SINCE),
}
INJECTIONS: dict[str, Injection] = {
    **OPERATIONS,
    **PRODUCTS,
    **MODELS,
    **FILES,
    **STAGES,
    **STEPS,
    **{id: one for table in HELD_OUT_SETS.values() for id, one in injections(table).items()},
}
GOALS = {"detected": 1.0, "placed": 0.9, "named": 0.75}
_FAILED = (verdict.FAIL, verdict.DEVIATES)


class Outcome(NamedTuple):
    """
    level:  of the list; "" where that is not known
    cases:  asked; failing: those that failed
    case:   the first failing one, of those that are named and placed if any is
    cause:  named first there; causes: by the number of failing cases
    forgotten: known bugs that named it, and were taken out of the lists
    finder: which gave the cause, if causes are marked (ablation.py)
    """

    id: str
    level: str
    cases: int = 0
    failing: int = 0
    case: str = ""
    placed: bool = False
    named: bool = False
    cause: str = ""
    causes: tuple[str, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    forgotten: tuple[str, ...] = ()
    finder: str = ""

    @property
    def detected(self) -> bool:
        return self.failing > 0


class Bench:
    """Injects bugs. Truths are computed once."""

    def __init__(self, numerics: str = "float32", files: ModelFiles = model_files):
        self._numerics, self._files = PROFILES[numerics], files
        self._reference = Reference(FLOAT64, model_files=files)
        self._runner = Runner(judges(files), functools.cache(self._truth_of), ())

    def _truth_of(self, name: str):
        case = CASES[name]
        return self._reference.run(case, case.realize())

    def outcome(self, id: str, level: str, injection: Injection) -> Outcome:
        began = time.perf_counter()
        engine = Injected(injection.bug, self._numerics, self._files)
        runner = self._runner._replace(truths=lambda case: self._runner.truths(case.name))
        cases: list[Case] = []
        for pattern in injection.cases:
            cases += [case for case in select(pattern) if case not in cases]
        results = run(runner, [engine], [case for case in cases if not engine.refuses(case)])
        broken = next((result for result in results if result.status == verdict.ERROR), None)
        if broken is not None:
            raise RuntimeError(f"{id} on {broken.case}: {broken.reason}")
        finders = {result.case: finder_of(result.causes[0]) for result in results if result.causes}
        failing = [_unmarked(result) for result in results if result.status in _FAILED]
        ranked = sorted(failing, key=lambda r: (not injection.named(r.causes), not injection.placed(told(r))))
        first = Counter(result.causes[0] if result.causes else "" for result in failing)
        return Outcome(
            id,
            level,
            len(results),
            len(failing),
            ranked[0].case if ranked else "",
            bool(ranked) and injection.placed(told(ranked[0])),
            bool(ranked) and injection.named(ranked[0].causes),
            ranked[0].causes[0] if ranked and ranked[0].causes else "",
            tuple(cause for cause, _ in first.most_common()),
            ranked[0].reason if ranked else "",
            time.perf_counter() - began,
            finder=finders.get(ranked[0].case, "") if ranked else "",
        )


def _unmarked(result: Result) -> Result:
    causes = tuple(unmarked(cause) for cause in result.causes)
    return msgspec.structs.replace(result, causes=causes, reason=unmarked(result.reason))


def without_lists(bench: Bench, id: str, level: str, injection: Injection) -> Outcome:
    """Ask again and again, each time without the known bugs that named it, until none does."""
    names, gone = listed(), set[str]()
    injection = injection._replace(cause="|".join([injection.cause, *filter(None, [OTHER_WORDS.get(id)])]))
    while True:
        with forgotten(gone):
            outcome = bench.outcome(id, level, injection)
        new = {bare(cause, names) for cause in (outcome.cause, *outcome.causes)} - {""} - gone
        if not new:
            return outcome._replace(forgotten=tuple(sorted(gone)))
        gone |= new


def told(result: Result) -> str:
    """What the report says about the place."""
    return f"{result.op} {result.place} {result.reason}"


def table(outcomes: list[Outcome]) -> str:
    lines = [
        "| bug | level | case that shows it | fails | placed | named first | what is named |",
        "|" + "---|" * 7,
    ]
    for o in outcomes:
        marks = ["yes" if one else "NO" for one in (o.placed, o.named)]
        lines.append(
            f"| {o.id} | {o.level} | {o.case or '-'} | {o.failing} of {o.cases} | {marks[0]} | {marks[1]} "
            f"| {o.cause or o.reason[:90]} |"
        )
    return "\n".join(lines)


def totals(outcomes: list[Outcome]) -> str:
    lines = ["| level | bugs | detected | placed | named first |", "|" + "---|" * 5]
    levels = [*dict.fromkeys(o.level for o in outcomes), ""]
    for level in levels:
        some = [o for o in outcomes if not level or o.level == level]
        shares = [sum(getattr(o, what) for o in some) / len(some) for what in GOALS]
        lines.append(f"| {level or 'all'} | {len(some)} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")
    lines.append("| goal | | " + " | ".join(f"{goal:.0%}" for goal in GOALS.values()) + " |")
    return "\n".join(lines)


def forgetful_halves(outcomes: list[Outcome], count: int, seed: int) -> str:
    """How many of the other half are named without a list, or by a known bug that a random half needs, too."""
    lines = ["", "| half | named without the other half's entries |", "|---|---|"]
    draw = random.Random(seed)
    for i in range(1, count + 1):
        shuffled = draw.sample(outcomes, len(outcomes))
        first, second = shuffled[: len(outcomes) // 2], shuffled[len(outcomes) // 2 :]
        needed = {name for o in first for name in o.forgotten}
        share = sum(o.named or bool(needed & {*o.forgotten}) for o in second) / len(second)
        lines.append(f"| {i} | {share:.0%} |")
    return "\n".join(lines)


def halves(outcomes: list[Outcome], count: int, seed: int) -> str:
    """How many are named in the other half by the kinds of cause that a random half needs."""
    bugs = [Named(o.id, o.level, o.cause if o.named else None) for o in outcomes]
    lines = ["", "| half | named by the first half's kinds | by all |", "|---|---|---|"]
    lines += [f"| {i} | {some:.0%} | {all_:.0%} |" for i, (some, all_) in enumerate(splits(bugs, count, seed), 1)]
    return "\n".join(lines)


def read(path: Path) -> dict[str, str]:
    """id -> level. Raises BadInput for a file that is no such list."""
    try:
        rows: Any = json.loads(path.read_text())
        return {str(row["id"]): str(row["level"]) for row in rows}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(f'{path}: expected a list of objects with "id" and "level": {error}') from None


def inject(
    bugs: Mapping[str, str],
    bench: Bench,
    note: Callable[[Outcome], None] = lambda outcome: None,
    forget: bool = False,
) -> list[Outcome]:
    """forget: without the known bugs that name a bug"""
    outcomes = []
    for id, level in bugs.items():
        injection = INJECTIONS.get(id)
        if injection is None:
            outcome = Outcome(id, level, reason="not injected")
        elif forget:
            outcome = without_lists(bench, id, level, injection)
        else:
            outcome = bench.outcome(id, level, injection)
        note(outcome)
        outcomes.append(outcome)
    return outcomes


def ablate(bugs: Mapping[str, str], bench: Bench, note: Callable[[Outcome], None], lists: bool = False) -> str:
    """Judge each bug, and again without the finder that named it; return a table of finders. lists: kept"""
    seconds: dict[str, float] = {}
    outcomes, without = [], {}
    with forgotten(set() if lists else listed()):
        for id, level in bugs.items():
            with marked(seconds):
                (outcome,) = inject({id: level}, bench, note)
            outcomes.append(outcome)
            if outcome.named and outcome.finder != "lists":
                with marked({}, off=outcome.finder):
                    (without[id],) = inject({id: level}, bench)
    return worth(outcomes, without, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bugs", type=Path, nargs="?", help='JSON: [{"id": "act-01", "level": "op"}, ...]')
    parser.add_argument(
        "--held-out",
        nargs="?",
        const="earlier",
        choices=[*HELD_OUT_SETS],
        help="held-out bugs of this folder, not a list's: earlier ones, or the fresh sets",
    )
    parser.add_argument("--id", action="append", help="only this bug; may be repeated")
    parser.add_argument("--level", help="only bugs of this level")
    parser.add_argument("--numerics", default="float32", choices=[*PROFILES], help="how the engine computes")
    parser.add_argument("--splits", type=int, default=0, help="so many random halves, measured on the other half")
    parser.add_argument("--seed", type=int, default=7, help="of the halves")
    parser.add_argument("--forget", action="store_true", help="each bug without the known bugs that name it")
    parser.add_argument("--ablate", action="store_true", help="each finder's worth, over the list and all sets")
    parser.add_argument("--lists", action="store_true", help="with --ablate: the lists of known bugs are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for machines")
    told = parser.parse_args()
    if (told.bugs is None) == (told.held_out is None):
        parser.error("expected either a list of bugs, or --held-out")
    try:
        bugs = levels(HELD_OUT_SETS[told.held_out]) if told.held_out else read(told.bugs)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    if told.ablate:
        bugs = dict(bugs)
        for one in HELD_OUT_SETS.values():
            bugs |= levels(one)
    bugs = {i: level for i, level in bugs.items() if (not told.id or i in told.id) and told.level in (None, level)}
    if not bugs:
        print(f"{told.bugs}: no such bug", file=sys.stderr)
        return 2

    def note(outcome: Outcome) -> None:
        if told.json:
            print(json.dumps(outcome._asdict()), flush=True)
        else:
            print(f"{outcome.id} {outcome.seconds:.1f} s", file=sys.stderr, flush=True)

    if told.ablate:
        print(ablate(bugs, Bench(told.numerics), note, told.lists))
        return 0
    outcomes = inject(bugs, Bench(told.numerics), note, told.forget)
    if not told.json:
        print(table(outcomes), totals(outcomes), sep="\n\n")
        if told.splits:
            print((forgetful_halves if told.forget else halves)(outcomes, told.splits, told.seed))
    reached = all(sum(getattr(o, what) for o in outcomes) >= goal * len(outcomes) for what, goal in GOALS.items())
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
