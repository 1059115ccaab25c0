"""The Engine protocol: what can be judged. The engines themselves stand in refsd/engines."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from refsd.golden.case import Case, ModelRecipe
from refsd.numerics.deviations import Deviation
from refsd.numerics.printable import printable
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor

# Gives the file (or the diffusers folder) that holds a model's recipe weights, writing it if need be.
ModelFiles = Callable[[ModelRecipe, str], Path]


class Engine(Protocol):
    """Something that computes a Case: the reference, ggml, torch, a program, a server.

    name:    as reports call it
    version: of the thing that computes, not of the adapter
    """

    name: str
    version: str

    def refuses(self, case: Case) -> str | None:
        """Why this engine does not take the case, in a few words; None if it does."""
        ...

    def numerics(self, case: Case) -> Numerics:
        """How the engine says that it computes this case: its honest rounding."""
        ...

    def deviations(self, case: Case) -> tuple[Deviation, ...]:
        """What the engine is known to do differently here."""
        ...

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        """Compute the case. Raises EngineFailure with the engine's own words if it cannot."""
        ...


@runtime_checkable
class TappedEngine(Engine, Protocol):
    """An engine that can show what it computed on the way."""

    def run_tapped(
        self, case: Case, inputs: Mapping[str, StoredTensor]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute the case -> outputs, taps: those that it has, by the reference's names. Raises EngineFailure."""
        ...


@runtime_checkable
class ForcedEngine(TappedEngine, Protocol):
    """An engine that can go on with given tensors in place of its own taps."""

    def can_force(self, case: Case) -> bool:
        """Whether it can in this case."""
        ...

    def run_forced(
        self, case: Case, inputs: Mapping[str, StoredTensor], forced: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """As run_tapped; at each tap in `forced` it goes on with that tensor, and still answers with its own."""
        ...


@runtime_checkable
class PartialEngine(TappedEngine, Protocol):
    """An engine that left what it computed in files: beside taps, outputs may be missing.

    partial: True
    """

    partial: bool


@runtime_checkable
class ServingEngine(Engine, Protocol):
    """An engine that answers all cases in one process, where one may leave something behind for the next."""

    def run_alone(
        self, case: Case, inputs: Mapping[str, StoredTensor], tapped: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute the case in a process that has answered nothing before -> outputs, taps. Raises EngineFailure.

        tapped: whether taps are wanted
        """
        ...


class EngineFailure(Exception):
    """The engine crashed, refused or answered nonsense; the message, one printable line, holds its last words."""

    def __init__(self, message: str):
        super().__init__(printable(" ".join(message.split())))


class EngineDied(EngineFailure):
    """The engine's process ended before it answered, or was ended because no answer came in time."""


class EngineSearch(NamedTuple):
    """What a look for an engine gave: the engine, or why there is none."""

    name: str
    engine: Engine | None
    why_not: str = ""
