"""The Engine protocol: what refsd can judge. The engines themselves are in refsd/engines."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from refsd.golden.case import Case, ModelRecipe
from refsd.numerics.deviations import Deviation
from refsd.numerics.printable import printable
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor

# Returns the file (or the diffusers folder) with a model's recipe weights, and writes it first if it is missing.
ModelFiles = Callable[[ModelRecipe, str], Path]


class Engine(Protocol):
    """Something that computes a Case: the reference, ggml, torch, a program, a server.

    name:    as reports call it
    version: of the engine, not of the adapter
    """

    name: str
    version: str

    def refuses(self, case: Case) -> str | None:
        """Return in a few words why this engine does not take the case; None if it does."""
        ...

    def numerics(self, case: Case) -> Numerics:
        """Return the numerics that the engine declares for this case: its dtypes and roundings."""
        ...

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        """Return the known differences between the engine and the reference in this case."""
        ...

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        """Compute the case -> outputs by name. Raises EngineFailure with the engine's own message if it cannot."""
        ...


class NoDeviations:
    """Base of the engines that differ from the reference by rounding alone."""

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        return ()


@runtime_checkable
class TappedEngine(Engine, Protocol):
    """An engine that can give its intermediate results, the "taps"."""

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute the case -> outputs, and the taps it has, by the reference's names. Raises EngineFailure."""
        ...


@runtime_checkable
class FusingEngine(TappedEngine, Protocol):
    """An engine that computes otherwise when it gives taps: a tap ends the fusion of the operations around it.

    So it is judged twice: with all its taps, and by its outputs without them.
    """

    def run_with(
        self, case: Case, inputs: Mapping[str, StoredTensor], taps: Collection[str]
    ) -> dict[str, np.ndarray]:
        """Compute as run_tapped does with only these taps, and return the outputs. Raises EngineFailure."""
        ...


@runtime_checkable
class SparingEngine(Engine, Protocol):
    """An engine that takes more cases than a run should ask it for unless the user names them."""

    def usual(self, case: Case) -> bool:
        """Return True if the engine is asked this case where the user names no cases."""
        ...


@runtime_checkable
class DeclaringEngine(Engine, Protocol):
    """An engine that lists the operations that it answers.

    declared: their names
    """

    declared: Collection[str]


@runtime_checkable
class ForcedEngine(TappedEngine, Protocol):
    """An engine that can continue from given tensors in place of its own taps."""

    def can_force(self, case: Case) -> bool:
        """Return True if the engine can do so in this case."""
        ...

    def run_forced(
        self, case: Case, inputs: Mapping[str, StoredTensor], forced: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute as run_tapped does, but continue from the tensors in `forced`; return the engine's own taps."""
        ...


@runtime_checkable
class PartialEngine(TappedEngine, Protocol):
    """An engine whose results come from files: if there are taps, outputs may be missing.

    partial: True
    gap:     says which tensors of the last case nothing tells, though they may be taps: without the outputs,
             the rest is no pass; "" if there are none
    """

    partial: bool
    gap: str


@runtime_checkable
class ServingEngine(Engine, Protocol):
    """An engine that answers all cases in one process, so that one case can affect the next."""

    def run_alone(
        self, case: Case, inputs: Mapping[str, StoredTensor], tapped: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute the case in a fresh process -> outputs, taps. Raises EngineFailure.

        tapped: whether taps are wanted
        """
        ...


class EngineFailure(Exception):
    """The engine crashed, refused or answered nonsense; the message is one printable line with its last output."""

    def __init__(self, message: str):
        super().__init__(printable(" ".join(message.split())))


class EngineDied(EngineFailure):
    """The engine's process ended before it answered, or was killed because no answer came in time.

    log: the last lines that it printed
    """

    def __init__(self, message: str, log: Sequence[str] = ()):
        super().__init__(message)
        self.log = tuple(log)


class NotJudged(EngineFailure):
    """refsd itself cannot ask the engine this case: nothing is said of the engine."""


class EngineSearch(NamedTuple):
    """The result of looking for an engine: the engine, or why there is none.

    only_by_name: True if a name that finds several engines does not find this one
    """

    name: str
    engine: Engine | None
    why_not: str = ""
    only_by_name: bool = False
