"""Reduce a failing case step by step; every step is asked of the engine, and kept if it fails in the same way."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from refsd.golden.case import Case
from refsd.golden.given_case import GivenCase
from refsd.golden.operations import OPERATIONS
from refsd.golden.repeated_requests import OF_REQUESTS
from refsd.golden.report import Result
from refsd.shrinking import moves, named_axes, numbers, pipeline_moves
from refsd.shrinking.failure import Cut, Cutter, Failure, Question, failure_of
from refsd.shrinking.fewer_blocks import fewer_blocks
from refsd.stages import STAGES

_SECONDS = 60.0
# Questions on single elements of the inputs, at most.
_ELEMENTS = 300
# Of a case that keeps more than this share of its numbers while it fails by the same cause, any failure is reduced.
_BARELY = 0.25
# Of so few numbers of an answer a factor, a bias and a zero each say as much.
_FEW = 3


class Moves(NamedTuple):
    """
    steps:    case -> simpler cases
    sizes_of: case -> its sizes by name
    resized:  case, name, size -> cases with that size
    """

    steps: tuple[Callable[[Case], Iterator[Case]], ...]
    sizes_of: Callable[[Case], dict[str, int]]
    resized: tuple[Callable[[Case, str, int], Iterator[Case]], ...]


_OPERATION = Moves(
    (moves.without_inputs, moves.in_float32, moves.plainer_params, moves.fewer_axes),
    moves.sizes_of,
    (moves.in_size, moves.in_equal_sizes),
)
_PIPELINE = Moves(
    (
        pipeline_moves.plainer_models,
        fewer_blocks,
        pipeline_moves.without_inputs,
        pipeline_moves.plainer_params,
    ),
    named_axes.sizes_of,
    (pipeline_moves.in_size, pipeline_moves.in_equal_sizes),
)


class Shrunk(NamedTuple):
    """
    case:      the smallest that fails in the same way, with its tensors
    result:    the verdict on it; first: on the case as it came
    original:  the case as it came
    questions: asked of the engine
    seconds:   that it took
    whole:     whether there was time to try every step
    tap:       of the original, if `case` is the operation behind it, alone
    cut:       what the first wrong tap of a model was made of, where no operation fails alone
    """

    case: GivenCase
    result: Result
    original: Case
    first: Result
    questions: int
    seconds: float
    whole: bool
    tap: str = ""
    cut: Cut | None = None

    @property
    def titled(self) -> Result:
        """The result whose cause names the failure.

        That of the case as it came where the smallest has too few numbers to tell one cause from another, or
        fails by another cause.
        """
        whole, smallest = failure_of(self.first), failure_of(self.result)
        if self.tap or self.case.op not in OPERATIONS or whole is None or smallest is None:
            return self.result
        few = 0 < sum(math.prod(m.shape) for m in self.result.outputs) <= _FEW
        other = bool(whole.causes) and whole.causes[0] not in smallest.causes[:1]
        return self.first if few or other else self.result


class _Late(Exception):
    """The time is over."""


class _Search:
    """The smallest case so far, and the question whether another fails likewise."""

    def __init__(self, ask: Question, case: Case, failure: Failure, result: Result, done: Callable[[Case], None]):
        self._ask, self._failure, self._done = ask, failure, done
        self.case, self.result = case, result
        self.questions = 0
        self.until = np.inf
        self._failed: set[bytes] = set()  # cases that do not fail likewise

    @property
    def explained(self) -> bool:
        return bool(self._failure.causes)

    def take_any_cause(self) -> None:
        """Take cases that fail by another cause, too."""
        self._failure = self._failure._replace(causes=())
        self._failed.clear()

    def takes(self, case: Case) -> bool:
        """Whether the case fails in the same way; then it is the smallest so far."""
        if time.monotonic() > self.until:
            raise _Late
        key = b"" if isinstance(case, GivenCase) else msgspec.json.encode(case)
        if key in self._failed:
            return False
        self.questions += 1
        result = self._ask(case)
        failure = result and failure_of(result)
        if result is None or failure is None or not self._failure.is_that_of(failure):
            self._failed |= {key} - {b""}
            return False
        self.case, self.result = case, result
        self._done(case)
        return True

    def first(self, cases: Iterable[Case]) -> bool:
        return any(self.takes(case) for case in cases)


def shrink(
    ask: Question,
    case: Case,
    result: Result,
    seconds: float = _SECONDS,
    done: Callable[[Case], None] = lambda case: None,
    quick: Question | None = None,
    cut: Cutter = lambda case: None,
    values: bool = True,
) -> Shrunk:
    """Reduce a case whose `result` does not conform.

    Of a model, the operation at the first wrong tap takes the model's place if the engine fails it alone too.
    A case whose answer changes from request to request, or depends on earlier ones, is not reduced: no smaller one
    can be told from it.

    ask:   the verdict on a case
    done:  called with every smaller case that is found
    quick: the verdict without causes, for models and trajectories, where looking for causes takes seconds
    values: reduce the numbers of an operation's inputs too, not its sizes and parameters alone
    """
    failure = failure_of(result)
    assert failure is not None, "a case that conforms is not reduced"
    begun = time.monotonic()
    if {*OF_REQUESTS} & {*result.causes}:
        return Shrunk(numbers.given(case), result, case, result, 0, 0.0, True)
    operation = case.op in OPERATIONS
    alone = None if operation else _alone(ask, cut(case), failure)
    if alone is not None:
        tap, first, of_it, failure = alone
        search = _Search(ask, first, failure, of_it, done)
        search.questions = 1
    elif operation or case.op in STAGES:
        tap, search = "", _Search(ask, case, failure, result, done)
    else:
        tap, search = "", _Search(quick or ask, case, failure._replace(causes=()), result, done)
    search.until = begun + seconds
    whole = _reduce(search, values)
    left, smallest = None, search.result
    if not tap and not operation and search.case is not case:
        left, smallest = cut(search.case), ask(search.case) or search.result
    elif not tap and not operation:
        left = cut(case)
    given = search.case if isinstance(search.case, GivenCase) else numbers.given(search.case)
    took = time.monotonic() - begun
    if not tap:
        smallest = _original_cause_first(smallest, failure)
    return Shrunk(given, smallest, case, result, search.questions, took, whole, tap, left)


def _original_cause_first(result: Result, failure: Failure) -> Result:
    """Put the likeliest cause of the case as it came first, if it is one of the smallest: it names the issue."""
    own = failure_of(result)
    if own is None or not failure.causes or failure.causes[0] not in own.causes or result.deviations:
        return result
    return result.led_by(result.causes[own.causes.index(failure.causes[0])])


def _alone(ask: Question, cut: Cut | None, failure: Failure) -> tuple[str, Case, Result, Failure] | None:
    """The operation of a cut that the engine fails alone, in the same way -> tap, case, verdict, failure."""
    for case in cut.operations if cut is not None else ():
        result = ask(case)
        own = failure_of(result) if result is not None else None
        if result is not None and own is not None and (own.status, own.kind) == (failure.status, failure.kind):
            assert cut is not None
            return cut.tap, case, result, own
    return None


def _reduce(search: _Search, values: bool) -> bool:
    """Whether there was time to try every step."""
    operation = search.case.op in OPERATIONS
    before = _size(search.case)
    try:
        _reduce_shape(search, _OPERATION if operation else _PIPELINE)
        if operation and search.explained and _size(search.case) > _BARELY * before:
            search.take_any_cause()
            _reduce_shape(search, _OPERATION)
        if operation and values:
            _reduce_numbers(search)
    except _Late:
        return False
    return True


def _size(case: Case) -> int:
    return sum(math.prod(recipe.shape) for recipe in case.inputs.values())


def _reduce_shape(search: _Search, by: Moves) -> None:
    """Inputs, types, parameters, axes and sizes, until no step is left."""
    before = None
    while before is not search.case:
        before = search.case
        for step in by.steps:
            while search.first(step(search.case)):
                pass
        sizes = by.sizes_of(search.case)
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            _reduce_size(search, by, name)


def _reduce_size(search: _Search, by: Moves, name: str) -> None:
    """A size alone, then together with those that are as large."""
    for change in by.resized:
        size = by.sizes_of(search.case).get(name, 1)
        rungs = moves.rungs(size)
        if any(search.first(change(search.case, name, rung)) for rung in rungs):
            return
        good = max(rungs, default=size)
        while size - good > 1:
            middle = (good + size) // 2
            if search.first(change(search.case, name, middle)):
                size = middle
            else:
                good = middle


def _reduce_numbers(search: _Search) -> None:
    case = search.case if isinstance(search.case, GivenCase) else numbers.given(search.case)
    search.case = case
    for name in numbers.reducible(case):
        x = numbers.values_of(_given(search), name)
        done = any(search.takes(numbers.with_values(_given(search), name, values)) for values in numbers.plainer(x))
        left = numbers.values_of(_given(search), name)
        if not done or len({*left.tolist()}) > 2:
            _reduce_elements(search, name)


def _given(search: _Search) -> GivenCase:
    assert isinstance(search.case, GivenCase)
    return search.case


def _reduce_elements(search: _Search, name: str) -> None:
    """Zero halves, quarters and single elements of an input."""
    before = search.questions
    for piece in numbers.pieces(numbers.values_of(_given(search), name).size):
        if search.questions - before > _ELEMENTS:
            return
        x = numbers.values_of(_given(search), name)
        if x[piece].any():
            x[piece] = 0
            search.takes(numbers.with_values(_given(search), name, x))
