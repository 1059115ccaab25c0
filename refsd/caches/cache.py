"""What all caches share: where they look, what they are told, and how the caller asks them."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import ClassVar, NamedTuple

import numpy as np


class Place(Enum):
    """Where a cache looks, and what its answer replaces."""

    NETWORK = "the network: its input, and its output"
    STACK = "the main blocks: their input, and the output of the last"
    MODULATED = "the main blocks: the modulated input of the first, and the output of the last"
    FIRST_BLOCK = "the main blocks: the output of the first, and that of the last"


class Steps(NamedTuple):
    """The steps of a run.

    sigmas:   [n + 1], falling
    sigma_at: share of the training's noise levels passed, 0 to 1 -> noise level
    """

    sigmas: np.ndarray
    sigma_at: Callable[[float], float]

    @property
    def count(self) -> int:
        return len(self.sigmas) - 1


class Call(NamedTuple):
    """One call of the network with one condition.

    condition: "cond", "uncond", ...: the calls of a step, the first of which some caches decide by
    step:      from 0
    start:     the input of what the cache can replace
    signal:    what its Place looks at; `start` itself for NETWORK and STACK
    """

    condition: str
    step: int
    start: np.ndarray
    signal: np.ndarray


class Limits(NamedTuple):
    """An option's default and range. whole: True for whole numbers; many: True for several, 1/1.2/0.9"""

    default: float | tuple[float, ...]
    low: float
    high: float
    whole: bool = False
    many: bool = False


class Cache:
    """A cache of one sampling run of one picture.

    place:   where it looks
    options: its options, by the names of its parameters
    measured: the option whose default was measured on FLUX.1 dev; "": none
    """

    place = Place.NETWORK
    options: ClassVar[Mapping[str, Limits]] = {}
    measured = ""

    def __init__(self, steps: Steps):
        self.steps = steps

    def reuse(self, call: Call) -> np.ndarray | None:
        """Return the answer to a call from what is kept; None: it has to be computed."""
        raise NotImplementedError

    def keep(self, call: Call, end: np.ndarray) -> None:
        """Take the computed answer to a call for which `reuse` returned None."""
        raise NotImplementedError


def mean_distance(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x - y).mean())


def relative_distance(x: np.ndarray, before: np.ndarray) -> float:
    """Return mean |x - before| / mean |before|."""
    return mean_distance(x, before) / float(np.abs(before).mean())
