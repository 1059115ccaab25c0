"""Make weights and inputs from names; forty lines in any language reproduce them bit for bit.

The specification, with test vectors, is in README.md beside this file.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from refsd.golden.block_scales import SCALE_FIELDS, scales_fit, set_scales
from refsd.kernels.philox import bell_values, philox_successive
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, shape_problem


class Recipe(msgspec.Struct, frozen=True):
    """How to make a tensor.

    shape:    in torch's order
    type:     storage type: "f32", "f16", "bf16", "i32", "i64", "q4_0", ...
    data:     a data set of DATA_SETS: "bell", "integers", "outliers", ...
    exponent: values are integers times 2**exponent
    offset:   added to every value
    seed:     another draw of the same name
    n:        "token_ids": values are in [0, n); "masked": every n-th row is -inf throughout, none if n is 0;
              "late": each row has n more -inf at its beginning than the row before;
              "prefix": each row has n ones fewer than the row before; n < 0: -n more, the last row all;
              "rows": every n-th row is 0 throughout, none if n is 0
    """

    shape: tuple[int, ...]
    type: str = "f32"
    data: str = "bell"
    exponent: int = -15
    offset: float = 0.0
    seed: int = 0
    n: int = 0


# --- the data sets: words uint32 [N, 2], channel int64 [N], n -> integers [N] or (integers [N], shift [N]) ------


def _bell(words):
    halves = words.view(np.uint16).astype(np.int32)
    return halves[:, 0] + halves[:, 1] + halves[:, 2] + halves[:, 3] - 131070


def _below(word, n):
    """Return the word scaled to an integer in [0, n): floor(word n / 2**32)."""
    return (word.astype(np.uint64) * np.uint64(n) >> np.uint64(32)).astype(np.int64)


def _wide(words, channel, n):
    low, high = (words[:, 0] & 0xFFFF).astype(np.int64), (words[:, 0] >> 16).astype(np.int64)
    return low - high, _below(words[:, 1], 25) - 12


class DataSet(NamedTuple):
    """A distribution of values.

    draw:  words uint32 [N, 2], channel int64 [N], n -> integers [N], shift (one, or [N])
    kills: the bugs that it is there to find
    """

    draw: Callable
    kills: str


DATA_SETS: dict[str, DataSet] = {
    "bell": DataSet(
        lambda words, channel, n: (_bell(words), 0),
        "anything that a typical weight shows: wrong order, wrong layout, a missing term",
    ),
    "integers": DataSet(
        lambda words, channel, n: (_below(words[:, 0], 9) - 4, 0),
        "an off-by-one that hides in rounding: sums of small integers are exact, so that every bit must agree",
    ),
    "outliers": DataSet(
        lambda words, channel, n: (_bell(words), np.where(channel % 7 == 3, 6, 0)),
        "a low-precision path taken where the activations do not allow it; a mixed-up channel",
    ),
    "wide": DataSet(_wide, "overflow, flushed subnormals, a scale applied at the wrong place"),
    "positive": DataSet(
        lambda words, channel, n: (_bell(words) + 131071, 0),
        "biased rounding, which cancels over signed values and adds up over these",
    ),
    "tiny": DataSet(
        lambda words, channel, n: (_bell(words), -9),
        "a wrong eps: at the default exponent the variance is 5.1e-6, between 1e-6 and 1e-5",
    ),
    "shifted": DataSet(
        lambda words, channel, n: (_bell(words) + (1 << 23), 0),
        "a variance computed as E[x^2] - E[x]^2: the mean is 222 standard deviations",
    ),
    "constant": DataSet(
        lambda words, channel, n: (np.zeros(len(words), np.int32), 0),
        "a padded border, a wrong count in a mean: everything is the offset",
    ),
    "masked": DataSet(
        lambda words, channel, n: (_bell(words), 0),
        "a mask whose -inf is a large number, or makes NaN; a row that hides everything",
    ),
    "late": DataSet(
        lambda words, channel, n: (_bell(words), 0),
        "a mask that hides whole blocks of the first keys, of which a running maximum is -inf",
    ),
    "token_ids": DataSet(
        lambda words, channel, n: (_below(words[:, 0], n), 0),
        "an embedding row that is off by one, ids that pass through a float16",
    ),
    "rows": DataSet(
        lambda words, channel, n: (_bell(words), 0),
        "a scale of another row, or of all rows, of which some are 64 times as large; a row of zeros divided by 0",
    ),
    "prefix": DataSet(
        lambda words, channel, n: (np.zeros(len(words), np.int64), 0),
        "a mask turned round, or taken for that of another row: ones, then zeros, n fewer ones in each row",
    ),
}


_SILENT = ("f8_e4m3", "f8_e5m2")  # their overflow raises nothing

# Counters in one chunk: 2 MiB of words, which fit in a cache.
_CHUNK = 1 << 17


def key_of(name: str) -> int:
    """Return the 64-bit FNV-1a hash of the name's UTF-8 bytes."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % (1 << 64)
    return key


def _word_chunks(name: str, seed: int, counters: int) -> Iterator[np.ndarray]:
    key = np.uint64(key_of(name))
    for first in range(0, counters, _CHUNK):
        yield philox_successive(np.uint64(first), min(_CHUNK, counters - first), np.uint64(seed), key)


def words_of(name: str, counters: int) -> Iterator[np.ndarray]:
    """Yield the words of a name's stream under seed 0, in chunks of [counters, 4]."""
    return _word_chunks(name, 0, counters)


def realize(recipe: Recipe, name: str) -> StoredTensor:
    """Make the tensor that `recipe` describes, keyed by `name`.

    Raises BadInput for a recipe that the specification does not allow.
    """
    problem = _problem(recipe)
    if problem:
        raise BadInput(f"recipe of {name!r}: {problem}")
    make = _scalars if recipe.type in SCALAR_TYPES else _blocks
    return StoredTensor(recipe.type, recipe.shape, make(recipe, name))


def _problem(recipe: Recipe) -> str | None:
    if recipe.data not in DATA_SETS:
        return f"unknown data set {recipe.data!r}; there are {', '.join(DATA_SETS)}"
    if problem := shape_problem(recipe.shape):
        return f"shape {recipe.shape}: {problem}"
    if not 0 <= recipe.seed < 1 << 64:
        return f"seed {recipe.seed} is outside 0..2**64 - 1"
    if not math.isfinite(recipe.offset):
        return f"offset {recipe.offset} is not finite"
    if recipe.data == "token_ids" and not 0 < recipe.n <= 1 << 24:
        return f"token_ids wants n in 1..2**24, found {recipe.n}"
    if recipe.data in ("masked", "late") and (recipe.type not in ("f64", "f32", "f16", "bf16") or recipe.n < 0):
        return f"{recipe.data} wants a floating type and n >= 0, found {recipe.type} and {recipe.n}"
    if recipe.data == "rows" and recipe.n < 0:
        return f"rows wants n >= 0, found {recipe.n}"
    if recipe.type in SCALAR_TYPES:
        if recipe.type == "bool":
            return "no data set makes bool"
        return None if -114 <= recipe.exponent <= 96 else f"exponent {recipe.exponent} is outside -114..96"
    if recipe.type not in SCALE_FIELDS or recipe.type not in BLOCK_TYPES:
        types = [t for t in SCALE_FIELDS if t in BLOCK_TYPES]
        return f"unknown type {recipe.type!r}; there are {', '.join([*SCALAR_TYPES, *types])}"
    if recipe.data != "bell" or recipe.offset != 0:
        return f"{recipe.type} blocks are made of random bytes: data must be 'bell' and offset 0"
    if not recipe.shape or recipe.shape[-1] % BLOCK_TYPES[recipe.type].block:
        return f"rows of {recipe.shape} are not whole blocks of {BLOCK_TYPES[recipe.type].block}"
    if not scales_fit(recipe.type, recipe.exponent):
        return f"exponent {recipe.exponent} puts a scale of {recipe.type} outside its type"
    return None


def _scalars(recipe: Recipe, name: str) -> np.ndarray:
    size = math.prod(recipe.shape)
    flat = np.empty(size, SCALAR_TYPES[recipe.type])
    if recipe.data == "bell" and recipe.type == "f32":
        scale, offset = np.float32(math.ldexp(1.0, recipe.exponent)), np.float32(recipe.offset)
        bell_values(np.uint64(recipe.seed), np.uint64(key_of(name)), scale, offset, flat)
        return flat.reshape(recipe.shape)
    limits = np.iinfo(flat.dtype) if flat.dtype.kind in "iu" else None
    draw = DATA_SETS[recipe.data].draw
    done = 0
    for words in _word_chunks(name, recipe.seed, (size + 1) // 2):
        count = min(2 * len(words), size - done)
        channel = _channel(recipe, done, count)
        integers, shift = draw(words.reshape(-1, 2)[:count], channel, recipe.n)
        if recipe.data == "prefix":
            integers = _ones(recipe, done, count)
        if recipe.data == "rows":
            integers, shift = _by_rows(recipe, integers, done)
        values = _scale(integers, shift, recipe)
        if recipe.data == "masked":
            values[_hidden(recipe, words.reshape(-1, 2)[:count, 0], done)] = -np.inf
        if recipe.data == "late":
            values[_early(recipe, done, count)] = -np.inf
        if limits:
            np.rint(values, out=values)
            if values.min() < limits.min or values.max() > limits.max:
                raise BadInput(
                    f"recipe of {name!r}: values {values.min()}..{values.max()} do not fit {recipe.type}"
                )
        try:
            with np.errstate(over="raise"):
                flat[done : done + count] = values
                if recipe.type in _SILENT and not np.isfinite(values.astype(flat.dtype).astype(np.float32)).all():
                    raise FloatingPointError
        except FloatingPointError:
            raise BadInput(f"recipe of {name!r}: exponent {recipe.exponent} overflows {recipe.type}") from None
        done += count
    return flat.reshape(recipe.shape)


def _channel(recipe: Recipe, first: int, count: int) -> np.ndarray | None:
    """Return the channel of each element for "outliers": axis 1 of four, else the last; [0] for other data sets."""
    if recipe.data != "outliers" or not recipe.shape:
        return np.zeros(1, np.int64)
    axis = 1 if len(recipe.shape) == 4 else len(recipe.shape) - 1
    return np.arange(first, first + count) // math.prod(recipe.shape[axis + 1 :]) % recipe.shape[axis]


def _ones(recipe: Recipe, first: int, count: int) -> np.ndarray:
    """Return where "prefix" is 1: n fewer elements in each row, or -n more; always the row's first. -> int64 [N]"""
    width = recipe.shape[-1] if recipe.shape else 1
    row, column = np.divmod(np.arange(first, first + count), width)
    if recipe.n < 0:
        row = math.prod(recipe.shape[:-1]) - 1 - row
    return ((column == 0) | (column + abs(recipe.n) * row < width)).astype(np.int64)


def _by_rows(recipe: Recipe, integers: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers of "rows", 0 in every n-th row, and their shifts: 6 in each seventh row. -> two of [N]"""
    row = np.arange(first, first + len(integers)) // (recipe.shape[-1] if recipe.shape else 1)
    empty = row % recipe.n == recipe.n - 1 if recipe.n else np.zeros(len(row), bool)
    return np.where(empty, 0, integers), np.where(row % 7 == 3, 6, 0)


def _hidden(recipe: Recipe, words: np.ndarray, first: int) -> np.ndarray:
    """Return where "masked" is -inf: 3 of 8 elements, never on the diagonal; and whole rows. -> bool [N]"""
    width = recipe.shape[-1] if recipe.shape else 1
    row, column = np.divmod(np.arange(first, first + len(words)), width)
    some = (words & 7 < 3) & (column != row % width)
    return some | (row % recipe.n == recipe.n - 1) if recipe.n else some


def _early(recipe: Recipe, first: int, count: int) -> np.ndarray:
    """Return where "late" is -inf: the first n r elements of row r, but never the row's last. -> bool [N]"""
    width = recipe.shape[-1] if recipe.shape else 1
    row, column = np.divmod(np.arange(first, first + count), width)
    return (column < recipe.n * row) & (column < width - 1)


def _scale(integers, shift, recipe: Recipe) -> np.ndarray:
    """Return integers * 2**(exponent + shift), exact, plus the offset, rounded once to float32."""
    if np.ndim(shift):
        values = np.ldexp(integers.astype(np.float32), (recipe.exponent + shift).astype(np.int32))
    else:
        values = integers.astype(np.float32) * np.float32(math.ldexp(1.0, recipe.exponent + shift))
    return values + np.float32(recipe.offset) if recipe.offset else values


def _blocks(recipe: Recipe, name: str) -> np.ndarray:
    block_type = BLOCK_TYPES[recipe.type]
    data = np.empty(math.prod(recipe.shape) // block_type.block * block_type.bytes, np.uint8)
    done = 0
    for words in _word_chunks(name, recipe.seed, (data.size + 15) // 16):
        stream = words.astype("<u4", copy=False).reshape(-1).view(np.uint8)
        count = min(stream.size, data.size - done)
        data[done : done + count] = stream[:count]
        done += count
    blocks = data.reshape(-1, block_type.bytes)
    set_scales(recipe.type, blocks, recipe.exponent)
    return data
