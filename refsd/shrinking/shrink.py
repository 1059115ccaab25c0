"""Reduce a failing case step by step; every step is asked of the engine, and kept if it fails in the same way."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from refsd.golden.case import Case
from refsd.golden.conform import Result
from refsd.golden.given_case import GivenCase
from refsd.golden.operations import OPERATIONS
from refsd.shrinking import moves, numbers
from refsd.shrinking.failure import Failure, Question, failure_of

_SECONDS = 60.0
# Questions on single elements of the inputs, at most.
_ELEMENTS = 300


class Shrunk(NamedTuple):
    """
    case:      the smallest that fails in the same way, with its tensors
    result:    the verdict on it; first: on the case as it came
    original:  the case as it came
    questions: asked of the engine
    seconds:   that it took
    whole:     whether there was time to try every step
    """

    case: GivenCase
    result: Result
    original: Case
    first: Result
    questions: int
    seconds: float
    whole: bool


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
) -> Shrunk:
    """Reduce a case of an operation whose `result` does not conform; other cases are left as they are.

    ask:  the verdict on a case
    done: called with every smaller case that is found
    """
    failure = failure_of(result)
    assert failure is not None, "a case that conforms is not reduced"
    begun = time.monotonic()
    search = _Search(ask, case, failure, result, done)
    search.until = begun + seconds
    whole = True
    try:
        if case.op in OPERATIONS and not isinstance(case, GivenCase):
            _reduce_shape(search)
        if case.op in OPERATIONS:
            _reduce_numbers(search)
    except _Late:
        whole = False
    smallest = search.case if isinstance(search.case, GivenCase) else numbers.given(search.case)
    return Shrunk(smallest, search.result, case, result, search.questions, time.monotonic() - begun, whole)


def _reduce_shape(search: _Search) -> None:
    """Inputs, types, parameters, axes and sizes, until no step is left."""
    steps = (moves.without_inputs, moves.in_float32, moves.plainer_params, moves.fewer_axes)
    before = None
    while before != search.case:
        before = search.case
        for step in steps:
            while search.first(step(search.case)):
                pass
        for name in sorted(_sizes(search), key=lambda name: -_sizes(search)[name]):
            _reduce_size(search, name)


def _sizes(search: _Search) -> dict[str, int]:
    return moves.sizes_of(search.case)


def _reduce_size(search: _Search, name: str) -> None:
    """A size alone, then together with those that are as large."""
    for change in (moves.in_size, moves.in_equal_sizes):
        size = _sizes(search).get(name, 1)
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
    asked = search.questions
    for piece in numbers.pieces(numbers.values_of(_given(search), name).size):
        if search.questions - asked > _ELEMENTS:
            return
        x = numbers.values_of(_given(search), name)
        if x[piece].any():
            x[piece] = 0
            search.takes(numbers.with_values(_given(search), name, x))
