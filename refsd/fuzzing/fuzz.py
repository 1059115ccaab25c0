"""Ask an engine random cases, reduce what it fails, and keep one find of each kind."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from refsd import __version__
from refsd.fuzzing.draw import draw, rounds
from refsd.fuzzing.draw_blocks import BLOCK, block_bases, blocks, draw_block
from refsd.fuzzing.draw_models import MODEL, bases, components, draw_model
from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.golden.conform import Runner
from refsd.golden.engine import ServingEngine
from refsd.golden.operations import OPERATIONS
from refsd.golden.repeated_requests import LEFT_OVER
from refsd.golden.report import Result
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.requests.isolated_engine import IsolatedEngine, IsolatedServing
from refsd.requests.random_case import RandomCase, name_of, parse
from refsd.shrinking.failure import Failure, ask, cut, failure_of
from refsd.shrinking.shrink import Shrunk, shrink

# For the reduction of one find: of an operation, of a model.
_SECONDS, _SECONDS_OF_A_MODEL = 20.0, 60.0


class Find(msgspec.Struct):
    """
    case:   the random case that showed it first
    layout: of its tensors in memory
    op:     its operation
    kind:   "wrong", "deviates", "crash" (or no answer in time), "error"
    title:  what is wrong, in a few words
    causes: known bugs that explain it, or deviations
    reason: the verdict on the smallest case
    shapes: of the smallest case's inputs; params: of the smallest case
    times:  in how many cases it was seen
    folder: that reproduces it
    """

    case: str
    layout: str
    op: str
    kind: str
    title: str
    causes: list[str]
    reason: str
    shapes: dict[str, list[int]]
    params: dict
    times: int = 1
    folder: str = ""


class Outcome(msgspec.Struct):
    """
    refsd:      version
    engine, version: that was asked
    seed:       of the cases
    asked:      cases that were judged, by operation
    refused:    cases that the engine does not take, by reason
    unjudged:   cases in which nothing can be judged
    finds:      one of each kind
    seconds:    that it took
    partial:    how it ended, if it was interrupted
    """

    refsd: str
    engine: str
    version: str
    seed: int
    asked: dict[str, int]
    refused: dict[str, int]
    unjudged: int
    finds: list[Find]
    seconds: float
    partial: str = ""


class Asked(NamedTuple):
    """How an engine did in one case: it refused, or has a result; neither where nothing can be judged."""

    refusal: str = ""
    result: Result | None = None


class New(NamedTuple):
    """A failure that no earlier find is like."""

    case: RandomCase
    result: Result
    failure: Failure


class Kind(NamedTuple):
    """What random cases are drawn of.

    names: of the operations, components or blocks
    bases: a name -> the corpus' cases from which its random cases are made
    draw:  seed, name, number -> the random case
    """

    names: Callable[[], list[str]]
    bases: Callable[[str], Sequence[Case]]
    draw: Callable[[int, str, int], RandomCase]


# The prefix of its names -> kind, operations last. Without their prefix, models and blocks are not asked.
KINDS = {
    MODEL: Kind(components, bases, draw_model),
    BLOCK: Kind(blocks, block_bases, draw_block),
    "": Kind(lambda: [*OPERATIONS], lambda op: OPERATIONS[op].cases, draw),
}


class _Known(NamedTuple):
    """A find, and how the engine failed there."""

    find: Find
    failure: Failure


class Tally:
    """What was asked, and the finds; it asks nothing itself."""

    def __init__(self):
        self.asked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.unjudged = 0
        self._known: list[_Known] = []
        self.begun = time.monotonic()

    @property
    def finds(self) -> list[Find]:
        return [known.find for known in self._known]

    def count(self, case: RandomCase, outcome: Asked) -> New | None:
        """Count an answer -> what must be reduced, if it is a find. `add` must follow."""
        if outcome.result is None:
            self.refused[outcome.refusal] += bool(outcome.refusal)
            self.unjudged += not outcome.refusal
            return None
        named = parse(case.name)
        self.asked[named[1] if named is not None else case.op] += 1
        failure = failure_of(outcome.result)
        if failure is None:
            return None
        same = next((known for known in self._known if _alike(known.failure, failure)), None)
        if same is not None:
            same.find.times += 1
            return None
        return New(case, outcome.result, failure)

    def add(self, new: New, find: Find) -> None:
        self._known.append(_Known(find, new.failure))


class Fuzzer(Tally):
    """Asks an engine from this process.

    runner: judges
    keep:   writes a find's folder -> its name; the shrunk case, and how many finds there are before
    """

    def __init__(
        self, engine: IsolatedEngine, runner: Runner, keep: Callable[[Shrunk, int], str] = lambda s, n: ""
    ):
        super().__init__()
        self.engine, self.runner, self._keep = engine, runner, keep
        # Earlier requests may have spoilt a first answer; a reduction asks too often to look again each time.
        served = isinstance(engine.engine, ServingEngine)
        self._watched = IsolatedServing(engine.engine) if served else engine
        self._before = ""

    def try_case(self, case: RandomCase) -> Find | None:
        """Ask one case -> a new find, or None."""
        new = self.count(case, self.ask(case))
        if new is None:
            return None
        find, shrunk = self.reduce(new)
        find.folder = self._keep(shrunk, len(self.finds))
        self.add(new, find)
        return find

    def ask(self, case: RandomCase) -> Asked:
        refusal = self.engine.refuses(case)
        if refusal is not None:
            return Asked(refusal)
        before, self._before = self._before, case.name
        self._watched.layout = case.layout
        result = self._ask(case, self._watched)
        if result is not None and LEFT_OVER in result.causes:
            result = replace(result, reason=f"{result.reason}; asked before it: {before}")
        return Asked(self._watched.refused, None) if result is None else Asked("", result)

    def _ask(self, case: Case, engine: IsolatedEngine | None = None) -> Result | None:
        """The verdict; None where there is none, or where the engine refused the case when it was asked."""
        judged = engine or self.engine
        judged.refused = ""
        result = ask(self.runner, judged, case)
        return None if result is not None and result.status == verdict.ERROR and judged.refused else result

    def _in_order(self, case: RandomCase, failure: Failure) -> tuple[RandomCase, Result] | None:
        """The case in the usual layout, if it fails there likewise."""
        before, self.engine.layout = self.engine.layout, "contiguous"
        result = None if before == "contiguous" else self._ask(case)
        other = result and failure_of(result)
        if result is not None and other is not None and failure.is_that_of(other):
            return replace(case, layout="contiguous"), result
        self.engine.layout = before
        return None

    def reduce(self, new: New) -> tuple[Find, Shrunk]:
        """Reduce a failing case as far as it fails likewise -> the find, without its folder."""
        case, result, failure = new
        self.engine.layout = case.layout
        plain = self._in_order(case, failure)
        if plain is not None:
            case, result = plain
        seconds = _SECONDS if case.model is None else _SECONDS_OF_A_MODEL
        quick = self.runner._replace(explains=False)
        shrunk = shrink(
            self._ask,
            case,
            result,
            seconds,
            quick=lambda smaller: ask(quick, self.engine, smaller),
            cut=lambda smaller: cut(self.runner, self.engine, smaller),
        )
        named = shrunk.titled
        shapes = {name: list(tensor.shape) for name, tensor in shrunk.case.tensors.items()}
        what = (*_causes(named), *named.looks, (failure_of(named) or failure).kind)[0]
        title = f"{failure.place}: {what}" if case.model is not None else what
        find = Find(case.name, case.layout, case.op, kind_of(failure), title, [*_causes(result)], "", shapes, {})
        find.reason, find.params = shrunk.result.reason, dict(shrunk.case.params)
        return find, shrunk


def _causes(result: Result) -> tuple[str, ...]:
    return result.deviations or result.causes


def kind_of(failure: Failure) -> str:
    if failure.status == verdict.ERROR:
        return "crash" if failure.kind.startswith(("ended by", "ended with", "no answer")) else "error"
    return "deviates" if failure.status == verdict.DEVIATES else "wrong"


def _alike(one: Failure, other: Failure) -> bool:
    """Whether two failures are one find: of one operation and kind, with a cause in common or none."""
    if (one.layer, one.status, one.kind) != (other.layer, other.status, other.kind):
        return False
    return bool({*one.causes} & {*other.causes}) or not (one.causes or other.causes)


def folder_name(op: str, number: int) -> str:
    """Return the name of a find's folder. op: of its smallest case; number: of the find, from 0 on"""
    return f"{number + 1:02}-{op.replace('/', '-')}"


def questions(seed: int, ops: Sequence[str], count: int | None, seconds: float) -> Iterator[tuple[str, int]]:
    """Operations and numbers of random cases, until there were so many or the time is over."""
    until = time.monotonic() + seconds
    for drawn, (op, number) in enumerate(rounds(seed, ops)):
        if drawn == count or (count is None and time.monotonic() > until):
            return
        yield op, number


def cases(seed: int, ops: Sequence[str], count: int | None, seconds: float) -> Iterator[RandomCase]:
    """The cases of `questions`."""
    return (drawn_case(seed, op, number) for op, number in questions(seed, ops, count, seconds))


def drawn_case(seed: int, op: str, number: int) -> RandomCase:
    """The random case of an operation, a model's component ("model/unet") or a block. Raises BadInput."""
    for prefix, kind in KINDS.items():
        if op.startswith(prefix):
            if op not in kind.names():
                known = [*OPERATIONS, *(name for other in KINDS.values() for name in other.names())]
                raise BadInput(f"{name_of(seed, op, number)}: no operation {op}{did_you_mean(op, known)}")
            return kind.draw(seed, op, number)
    raise AssertionError(op)


def operations_of(engine: IsolatedEngine, ops: Iterable[str]) -> list[str]:
    """Those of these operations, components of models and blocks of which the engine takes some case."""

    def cases_of(op: str) -> Sequence[Case]:
        return next(kind.bases(op) for prefix, kind in KINDS.items() if op.startswith(prefix))

    return [op for op in ops if any(engine.refuses(case) is None for case in cases_of(op))]


def outcome(tally: Tally, engine: str, version: str, seed: int, partial: str = "") -> Outcome:
    """What was found until now. engine, version: that was asked"""
    return Outcome(
        __version__,
        engine,
        version,
        seed,
        dict(sorted(tally.asked.items())),
        dict(tally.refused.most_common()),
        tally.unjudged,
        tally.finds,
        time.monotonic() - tally.begun,
        partial,
    )
