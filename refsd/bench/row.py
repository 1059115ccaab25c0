"""What the kernels' benchmark measures: a row is an operation at a size, a column who computes it."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Absent(Exception):
    """Why a contender cannot run, in a few words."""


class Ready(NamedTuple):
    """
    call:   the operation, its inputs made
    result: what the last call computed, as the row's truth has it; None where nobody compares
    facts:  what is worth a place in the table: the algorithm chosen, bytes taken
    """

    call: Callable[[], Any]
    result: Callable[[], np.ndarray] | None = None
    facts: Mapping[str, Any] = {}


class Column(NamedTuple):
    """
    processes: where it runs: the first of these contenders that is there (kernel_worker.py)
    ready:     that process's tools -> Ready; raises Absent
    """

    processes: tuple[str, ...]
    ready: Callable[[Any], Ready]


class Row(NamedTuple):
    """
    name:    "family/what", for --only and the table
    columns: in the order in which they take turns
    truth:   the answer in float64; None where nobody compares
    bytes:   that the operation must move at least: what it reads and what it writes, once
    """

    name: str
    columns: Mapping[str, Column]
    truth: Callable[[], np.ndarray] | None = None
    bytes: int = 0

    @property
    def family(self) -> str:
        return self.name.split("/")[0]


def normal(name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    """The same numbers in every process. -> float32 [shape], standard deviation `scale`"""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32) * np.float32(scale)


def computes(function: Callable[[], Any], seen: Callable[[Any], np.ndarray] = np.asarray, **facts) -> Ready:
    """Ready, with the last call's answer kept. seen: the answer as the row's truth has it"""
    kept: list[Any] = [None]

    def call() -> None:
        kept[0] = function()

    return Ready(call, lambda: seen(kept[0]), facts)
