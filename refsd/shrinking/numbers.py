"""Plainer numbers in a case's inputs: zeros, ones, small integers, fewer digits, more zeros."""

from collections.abc import Iterator

import numpy as np

from refsd.golden.case import Case
from refsd.golden.given_case import GivenCase
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

# Inputs with more elements keep their numbers.
MOST = 4096
_FLOATS = ("f64", "f32", "f16", "bf16")


def given(case: Case) -> GivenCase:
    """The case with its tensors in it."""
    return GivenCase(case.name, case.op, case.inputs, case.params, case.model, dict(case.realize()))


def reducible(case: GivenCase) -> list[str]:
    """The inputs whose numbers can be changed one by one, the largest first."""
    small = {k: t for k, t in case.tensors.items() if t.type in _FLOATS and 0 < t.data.size <= MOST}
    return sorted(small, key=lambda name: -small[name].data.size)


def with_values(case: GivenCase, name: str, values: np.ndarray) -> GivenCase:
    """The case with other numbers in one input."""
    before: StoredTensor = case.tensors[name]
    with np.errstate(over="ignore", invalid="ignore"):
        data = values.reshape(before.shape).astype(SCALAR_TYPES[before.type])
    tensors = {**case.tensors, name: before._replace(data=data)}
    return GivenCase(case.name, case.op, case.inputs, case.params, case.model, tensors)


def values_of(case: GivenCase, name: str) -> np.ndarray:
    """An input's numbers in a row, float64."""
    return np.asarray(case.tensors[name].values(), np.float64).reshape(-1)


def plainer(x: np.ndarray) -> Iterator[np.ndarray]:
    """Other numbers in their place, the plainest first."""
    yield np.zeros_like(x)
    yield np.ones_like(x)
    if np.isfinite(x).all():
        yield (np.arange(x.size) * 3 % 7 - 3).astype(np.float64)
    for digits in (0, 1, 2):
        rounded = np.round(x, digits) + 0.0  # no -0
        if not np.array_equal(rounded, x) and rounded.any():
            yield rounded


def pieces(size: int) -> Iterator[slice]:
    """Halves, quarters, ... and single elements."""
    length = size
    while length >= 1:
        yield from (slice(start, start + length) for start in range(0, size, length))
        length //= 2
