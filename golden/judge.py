"""Answer and judge each kind of case (operations, models' components, trajectories), with one class for each kind.

Code that handles a case calls `Judges.of(case)` once. A new kind is a subclass of Judge, listed in refsd/judges.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from refsd.golden.case import Case
from refsd.golden.explanation import Explanation
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

    name:   what an engine with the bug does, in a few words
    change: the difference from the reference, in the form that its judge uses
    """

    name: str
    change: Change


class Standard(NamedTuple):
    """What to judge an engine's answer against.

    inputs:     as `case.realize()` gives them
    truth:      the reference's answer in float64; honest: under `numerics`, which the engine declares
    deviations: those applied to truth and honest
    """

    case: Case
    inputs: Inputs
    truth: Answer
    honest: Answer
    numerics: Numerics
    deviations: tuple[Deviation, ...] = ()


class Trace(NamedTuple):
    """The measured intermediate results ("taps") of an engine.

    taps:  in the order of computation, then the outputs; each measured against the reference computed from the
           engine's earlier taps
    names: of all intermediate results of the reference
    ops:   tap -> the operations between the engine's tap before it and this one
    first: of the first wrong tap alone: name -> the reference's values from the engine's earlier taps, in float64
           and in the honest run
    shapes: tap -> the reference's shape
    sources: tap -> the taps that it is computed from, where that is known
    """

    taps: Sequence[Metrics] = ()
    names: Sequence[str] = ()
    ops: Mapping[str, Sequence[str]] = MappingProxyType({})
    first: Mapping[str, tuple[np.ndarray, np.ndarray]] = MappingProxyType({})
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    sources: Mapping[str, Sequence[str]] = MappingProxyType({})


class Judge(ABC):
    """One kind of case. actual: an engine's answer."""

    @abstractmethod
    def takes(self, op: str) -> bool:
        """Return True if cases with this `op` are of this kind."""

    @abstractmethod
    def what(self, case: Case) -> str:
        """Say in a phrase what the case computes."""

    def refuses(self, case: Case, numerics: Numerics) -> str | None:
        """Return why the reference cannot answer the case under these numerics; None if it can."""
        return None

    def complete(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        """Return the case's parameters with their defaults. Raises BadInput if they do not fit."""
        return case.params

    @abstractmethod
    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        """Compute the reference's answer under the arithmetic's numerics and deviations.

        Raises BadInput for a case that does not fit.
        """

    @abstractmethod
    def measure(self, standard: Standard, actual: Answer) -> list[Metrics]:
        """Measure every output, in the order of computation; then those that the case does not ask for."""

    def limits(self, standard: Standard) -> Answer:
        """Return output -> how far each element of an honest answer may be from the truth, where such a bound is
        known.
        """
        return NOTHING

    @abstractmethod
    def mutants(self, case: Case) -> Sequence[Mutant]:
        """Return the known bugs of this kind; some may make no difference to the case."""

    @abstractmethod
    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant) -> Answer | None:
        """Compute the reference's answer with a bug, otherwise in float32; None if the bug makes no difference."""

    def asks_for_taps(self, case: Case) -> bool:
        """Return True if an engine should give its intermediate results, where it can; False by default."""
        return False

    def trace(
        self,
        case: Case,
        inputs: Inputs,
        actual: Answer,
        numerics: Numerics,
        deviations: tuple[Deviation, ...] = (),
        forced: Answer = NOTHING,
    ) -> Trace:
        """Measure an engine's taps.

        actual: the taps, and any outputs
        forced: tap -> the tensor from which the engine continued in place of its own
        """
        return Trace()

    def layouts(self, case: Case, inputs: Inputs, actual: Answer) -> Mapping[str, tuple[int, ...]]:
        """Return tap -> axis order nearest to the reference; only taps stored in another order.

        actual: as for `trace`
        """
        return {}

    def reference_taps(self, case: Case, inputs: Inputs) -> Answer:
        """Compute all of the reference's own taps in float64."""
        return NOTHING

    @abstractmethod
    def explain(self, standard: Standard, actual: Answer, tap: str = "") -> Explanation:
        """Search for what explains a wrong answer.

        tap: the first wrong tap (or output), where `actual` has taps, as for `trace`; "": search by the outputs
        """


class Judges:
    """The judges of all kinds of case."""

    def __init__(self, *judges: Judge):
        self._judges = judges

    def find(self, case: Case) -> Judge | None:
        """Return the judge of this case's kind; None if there is none."""
        return next((judge for judge in self._judges if judge.takes(case.op)), None)

    def of(self, case: Case) -> Judge:
        """Return the judge of this case's kind. Raises BadInput if there is none."""
        judge = self.find(case)
        if judge is None:
            raise BadInput(f"{case.name}: no operation {case.op}")
        return judge
