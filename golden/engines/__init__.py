"""The Engine protocol. One file an engine; ENGINES names them all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.deviations import Deviation
from refsd.golden.numerics import Numerics
from refsd.golden.tensor import StoredTensor

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


class EngineFailure(Exception):
    """The engine crashed, refused or answered nonsense; the message holds its last words."""


class Found(NamedTuple):
    """What a look for an engine gave: the engine, or why there is none."""

    name: str
    engine: Engine | None
    why_not: str = ""
