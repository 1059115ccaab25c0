"""How a kind of case is answered and judged: operations, models' components, trajectories, a class each.

Whoever handles a case asks `Judges.of(case)` once. A new kind is a subclass of Judge, listed in refsd/judges.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from refsd.golden.case import Case
from refsd.golden.explanation import Nearest
from refsd.golden.metrics import Metrics
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import Deviation
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor

Answer = Mapping[str, np.ndarray]
Inputs = Mapping[str, StoredTensor]
NOTHING: Answer = MappingProxyType({})
Change = TypeVar("Change", covariant=True)


class Mutant(NamedTuple, Generic[Change]):
    """A known bug.

    name:   what an engine that has it does, in a few words
    change: how it differs from the reference, in the terms of the judge that lists it
    """

    name: str
    change: Change


class Standard(NamedTuple):
    """What an engine's answer to a case is held against.

    inputs:     as `case.realize()` gives them
    truth:      the reference's answer in float64; honest: under `numerics`, which the engine declares
    deviations: that truth and honest have
    """

    case: Case
    inputs: Inputs
    truth: Answer
    honest: Answer
    numerics: Numerics
    deviations: tuple[Deviation, ...] = ()


class Trace(NamedTuple):
    """The way to an answer, by those intermediate results ("taps") that an engine gave.

    taps:  measured in the order of computation, each beside what the reference makes of the engine's earlier taps;
           then the outputs, likewise
    names: of all intermediate results that there are
    ops:   tap -> the operations that lead to it from the engine's tap before it
    """

    taps: Sequence[Metrics] = ()
    names: Sequence[str] = ()
    ops: Mapping[str, Sequence[str]] = MappingProxyType({})


class Judge(ABC):
    """A kind of case. found: an engine's answer."""

    @abstractmethod
    def takes(self, op: str) -> bool:
        """True if cases that ask for `op` are of this kind."""

    @abstractmethod
    def what(self, case: Case) -> str:
        """What the case asks for, in a phrase."""

    def refuses(self, case: Case, numerics: Numerics) -> str | None:
        """Why the reference does not answer the case under these numerics; None if it does."""
        return None

    def complete(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """The case's parameters with their defaults. Raises BadInput for what does not fit."""
        return case.params

    @abstractmethod
    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        """The reference's answer, under the arithmetic's numerics and deviations.

        Raises BadInput for a case that does not fit.
        """

    @abstractmethod
    def measure(self, standard: Standard, found: Answer) -> list[Metrics]:
        """Every output measured, in the order of computation; then those that nobody asked for."""

    def limits(self, standard: Standard) -> Answer:
        """Output -> how far each element of an honest answer may be from the truth; without those that have no such
        bound.
        """
        return NOTHING

    @abstractmethod
    def mutants(self, case: Case) -> Sequence[Mutant]:
        """The known bugs of this kind; some may make no difference to the case."""

    @abstractmethod
    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant) -> Answer | None:
        """The reference's answer with a bug, otherwise in float32; None where the bug makes no difference."""

    def asks_for_taps(self, case: Case) -> bool:
        """Whether an engine that can is asked for its intermediate results; a kind has none unless it says so."""
        return False

    def trace(
        self,
        case: Case,
        inputs: Inputs,
        found: Answer,
        numerics: Numerics,
        deviations: tuple[Deviation, ...] = (),
        forced: Answer = NOTHING,
    ) -> Trace:
        """Measure an engine's taps.

        found:  taps and, of the outputs, any
        forced: what the engine went on with at some taps, in place of its own
        """
        return Trace()

    def reference_taps(self, case: Case, inputs: Inputs) -> Answer:
        """The reference's own taps in float64, all of them."""
        return NOTHING

    def explain_tap(self, standard: Standard, found: Answer, tap: str) -> list[str]:
        """What explains a wrong tap (or output), the likeliest first. found: as for `trace`."""
        return []

    def describe_tap(self, standard: Standard, found: Answer, tap: str) -> list[str]:
        """What a wrong tap (or output) looks like where nothing explains it, the surest first."""
        return []

    @abstractmethod
    def diagnose(self, standard: Standard, found: Answer) -> list[str]:
        """What explains an answer that does not conform, the likeliest first: with it the reference agrees."""

    def describe(self, standard: Standard, found: Answer) -> list[str]:
        """What such an answer looks like where nothing explains it, the surest first."""
        return []

    def nearest(self, standard: Standard, found: Answer) -> Nearest | None:
        """The known bug that explains more than half of an error that none explains."""
        return None


class Judges:
    """The kinds of case."""

    def __init__(self, *judges: Judge):
        self._judges = judges

    def find(self, case: Case) -> Judge | None:
        """The judge of this case's kind; None if there is none."""
        return next((judge for judge in self._judges if judge.takes(case.op)), None)

    def of(self, case: Case) -> Judge:
        """The judge of this case's kind. Raises BadInput if there is none."""
        judge = self.find(case)
        if judge is None:
            raise BadInput(f"{case.name}: no operation {case.op}")
        return judge
