"""Declare the kernel benchmark's rows (an operation at one size) and columns (an implementation of it)."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Absent(Exception):
    """A contender cannot run; the message is the reason."""


class Ready(NamedTuple):
    """An operation that is ready to be timed.

    call:   computes the operation on prepared inputs
    result: returns the last call's result in the layout of the row's truth; None if it is not compared
    facts:  facts for the table, such as the chosen algorithm or allocated bytes
    """

    call: Callable[[], Any]
    result: Callable[[], np.ndarray] | None = None
    facts: Mapping[str, Any] = {}


class Column(NamedTuple):
    """One implementation of a row's operation.

    processes: contenders (kernel_worker.py) in order of preference; the first available one runs it
    ready:     (that contender's tools) -> Ready; raises Absent
    """

    processes: tuple[str, ...]
    ready: Callable[[Any], Ready]


class Row(NamedTuple):
    """One operation at one size.

    name:    "family/what", for --only and the table
    columns: implementations, in the order of their turns
    truth:   computes the answer in float64; None: results are not compared
    bytes:   bytes that the family's table relates to the time: read and written, expanded, or the delta's size
    """

    name: str
    columns: Mapping[str, Column]
    truth: Callable[[], np.ndarray] | None = None
    bytes: int = 0

    @property
    def family(self) -> str:
        return self.name.split("/")[0]


def normal(name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Draw normal numbers that depend only on `name`. -> float32 [shape], standard deviation `scale`"""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32) * np.float32(scale)


def computes(function: Callable[[], Any], seen: Callable[[Any], np.ndarray] = np.asarray, **facts) -> Ready:
    """Make a Ready that keeps its last result. seen: converts the result to the layout of the row's truth"""
    kept: list[Any] = [None]

    def call() -> None:
        kept[0] = function()

    return Ready(call, lambda: seen(kept[0]), facts)
