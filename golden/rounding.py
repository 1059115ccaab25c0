"""Bound how far one rounding moves a number; bounds.py adds these up.

u is half a unit in the last place, relative: a number rounded to nearest moves by at most u |x|,
or by half the smallest subnormal below the normal numbers.
"""

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.golden.few_bits import moved_to_few_bits
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics import tf32
from refsd.numerics.profiles import DTYPES
from refsd.numerics.quantization import Quantization
from refsd.numerics.tensor import SCALAR_TYPES


def unit(dtype: np.dtype) -> float:
    """Return u of a floating-point dtype: 2**-24 for float32."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def floor(dtype: np.dtype) -> float:
    """Return the most that flushing subnormals to zero may lose: the smallest normal number."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)


def largest(dtype: np.dtype) -> float:
    """Return the largest finite number."""
    return float(ml_dtypes.finfo(dtype).max)


def moved(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Bound |round(x) - x| for numbers x: zero where x is representable, inf where it overflows.

    x: float64 [...] -> float64 [...]
    """
    info = ml_dtypes.finfo(dtype)
    with np.errstate(over="ignore"):
        same = x.astype(dtype).astype(np.float64) == x
    if same.all():
        return np.zeros(x.shape)
    bound = unit(dtype) * np.abs(x) + float(info.smallest_subnormal) / 2
    bound = np.where(np.abs(x) > largest(dtype), np.inf, bound)
    return np.where(same, 0.0, bound)


def _moved_q8_0(x: np.ndarray) -> np.ndarray:
    """Bound the error for d = amax / 127 of 32 values, in float16: half a step, and 127 times d's rounding."""
    amax = np.abs(x.reshape(-1, 32)).max(axis=1, keepdims=True)
    d = amax / 127
    half = np.dtype(np.float16)
    step = d / 2 + 127 * (unit(half) * d + float(ml_dtypes.finfo(half).smallest_subnormal) / 2)
    step = np.where(d > 65504, np.inf, step)
    return np.broadcast_to(step, (amax.size, 32)).reshape(x.shape)


def _moved_q8_k(x: np.ndarray) -> np.ndarray:
    """Bound the error for d = amax / 127 of 256 values, in float32: a step, by which the largest may be clipped."""
    amax = np.abs(x.reshape(-1, 256)).max(axis=1, keepdims=True)
    return np.broadcast_to(amax / 127, (amax.size, 256)).reshape(x.shape)


_MOVED_BLOCKS = {"q8_0": _moved_q8_0, "q8_1": _moved_q8_0, "q8_k": _moved_q8_k}


def unit_of_type(name: str | Quantization) -> float:
    """Return u of a scalar type by its name, or of small floats; 0 for blocks and integers of few bits."""
    if isinstance(name, Quantization):
        return 0.0 if name.block or name.integers else 2.0 ** -(name.grid.mantissa + 1)
    if name == "tf32":
        return tf32.UNIT
    return unit(SCALAR_TYPES[name]) if name in SCALAR_TYPES else 0.0


def _moved_tf32(x: np.ndarray) -> np.ndarray:
    return np.where(tf32.to_tf32(x) == x, 0.0, tf32.UNIT * np.abs(x) + 2.0**-137)


def moved_by_type(x: np.ndarray, type_name: str | Quantization | None, storage: str = "float32") -> np.ndarray:
    """Bound the error of converting x to a type ("f16", "q8_0", "q8_1", "q8_k", few bits, None) and back.

    x: float64 [...]; for a block type the last axis is whole blocks.
    Raises NotImplementedError for a block type that no engine uses for activations.
    """
    if type_name is None:
        return np.zeros_like(x)
    if isinstance(type_name, Quantization):
        return moved_to_few_bits(x, type_name, storage)
    if type_name == "tf32":
        return _moved_tf32(x)
    if type_name in SCALAR_TYPES:
        return moved(x, SCALAR_TYPES[type_name])
    if type_name not in _MOVED_BLOCKS:
        raise NotImplementedError(f"no bound for activations in {type_name}; there are {', '.join(_MOVED_BLOCKS)}")
    assert x.shape[-1] % BLOCK_TYPES[type_name].block == 0
    return _MOVED_BLOCKS[type_name](np.ascontiguousarray(x))


def moved_in_turn(x: np.ndarray, storage: str, type_name: str | Quantization | None = None) -> np.ndarray:
    """Bound the error of rounding x to the storage dtype and then converting it through a type."""
    first = moved(x, DTYPES[storage])
    stored = x.astype(DTYPES[storage]).astype(np.float64)
    return first + moved_by_type(stored, type_name, storage)


def gamma(n: int, u: float) -> float:
    """Return the relative bound on n roundings in a row, n u / (1 - n u); inf where n u reaches 1."""
    return n * u / (1 - n * u) if n * u < 1 else np.inf


def serial_error(x: np.ndarray, u: float) -> np.ndarray:
    """Return the error of adding up the last axis one number after another in float32.

    Roundings of equal, whole or very unequal numbers are not independent: they may all go one way, which no spread
    of independent roundings covers. x: float64 [..., n] -> float64 [..., 1]; 0 where u is not float32's
    """
    if u != unit(DTYPES["float32"]):
        return np.zeros_like(x[..., :1])
    x = x.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.accumulate(x, axis=-1)[..., -1:].astype(np.float64)
        error = total - x.sum(axis=-1, keepdims=True, dtype=np.float64)
    return np.where(np.isfinite(error), error, 0.0)


def alike(error: Any, spread: Any) -> bool:
    """Return True if the errors of rows have more of one sign than independent ones of this spread have."""
    rows = np.size(error)
    return rows > 1 and bool(abs(np.mean(error)) * math.sqrt(rows) > math.sqrt(np.mean(np.square(spread))))


class Pattern(NamedTuple):
    """What a known bug adds to an output on average, where no single element shows it.

    change: the bug
    along:  weights of the elements' errors, whose sum is the size: 1 where the bug is there
    error:  the standard deviation of this sum in honest engines
    """

    change: str
    along: np.ndarray
    error: float


class Bound(NamedTuple):
    """The error bound of an output.

    limit:  worst case of |engine - truth|, float64, the output's shape
    spread: its standard deviation if roundings are independent, the same shape
    groups: the least number of independent errors; 0: that of rows or of channels, whichever are fewer
    patterns: of bugs that stay inside the limits
    """

    limit: np.ndarray
    spread: np.ndarray
    groups: int = 0
    patterns: tuple[Pattern, ...] = ()


class Terms:
    """A sum of error terms: worst cases add up, independent errors add up in squares."""

    def __init__(self):
        self.limit: Any = 0.0
        self.square: Any = 0.0
        self.groups = 0

    def add(self, limit, spread=None) -> "Terms":
        spread = limit / math.sqrt(3) if spread is None else spread
        self.limit = self.limit + limit
        self.square = self.square + spread**2
        return self

    def bound(self, shape: tuple[int, ...]) -> Bound:
        limit, spread = np.broadcast_to(self.limit, shape), np.sqrt(np.broadcast_to(self.square, shape))
        limit = np.where(np.isnan(limit), np.inf, limit)
        return Bound(limit, np.where(np.isnan(spread), np.inf, spread), self.groups)
