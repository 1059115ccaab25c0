"""Sketches of goldens: at most 64 KiB, whatever the size of the answer, and still a bound on every element's error.

    sums[r, b] = sum of s_r(i) y_i over the elements i with h_r(i) = b,   r = 0 .. ROWS - 1

s_r(i) = +-1 is the lowest bit of word i of the stream of "<case>/<output>/sketch/<r>" (README.md, Philox), and
h_r(i) = floor((word >> 1) buckets / 2^31). Sums are linear: those of an engine's output less those of the truth are
the sums of its error e. In each row, whatever else is in the bucket, one of the two signs of e_i gives a sum of at
least |e_i|. So

    |e_i| <= max over r of |sums[r, h_r(i)]|      with probability 1 - 2^-ROWS,

for each element by itself, for an engine that does not know the signs; for all n together 1 - n 2^-ROWS. The mean
over rows of the sums of squares estimates that of e (Alon, Matias & Szegedy 1996), and the mean over rows of
s_r(i) sums[r, h_r(i)] one e_i (Charikar, Chen & Farach-Colton 2002, who take the median).
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from refsd.golden.recipe import words_of
from refsd.numerics.errors import BadInput

ROWS = 32
# Of all outputs of one golden: 56 KiB, which leave 8 KiB for the header.
_NUMBERS = 7168
_NOTE = "refsd-sketch"
# Another BLAS moves the truth by 1e-13 of an element.
_MOVED = 1e-12


class OutputNote(msgspec.Struct, frozen=True):
    """
    shape, sha256: of the float64 output
    rms:           of the truth
    honest:        numerics -> RMS error of the honest run, and the largest bound that its own sums give
    """

    shape: tuple[int, ...]
    sha256: str
    rms: float
    honest: dict[str, tuple[float, float]] = {}


class SketchNote(msgspec.Struct, frozen=True):
    """case: its name; refsd: version that computed it"""

    case: str
    refsd: str
    outputs: dict[str, OutputNote]


class GoldenSketch(NamedTuple):
    """sums: output -> [ROWS, buckets]"""

    note: SketchNote
    sums: dict[str, np.ndarray]


class Bound(NamedTuple):
    """What a sketch says of an output's error.

    rms:   of the error, within 5 %
    worst: no element is off by more, with probability 1 - chance
    at:    the element that seems to be off the most; estimate: of its error
    """

    rms: float
    worst: float
    at: tuple[int, ...]
    estimate: float
    chance: float


def sums_of(case: str, output: str, y: np.ndarray, buckets: int) -> np.ndarray:
    """Sum y into [ROWS, buckets], in float64."""
    y = np.ascontiguousarray(y, np.float64).ravel()
    sums = np.zeros((ROWS, buckets))
    for r in range(ROWS):
        for first, signs, bucket in _places(case, output, r, y.size, buckets):
            part = y[first : first + len(signs)]
            sums[r] += np.bincount(bucket, weights=signs * part, minlength=buckets)
    return sums


def _places(case: str, output: str, row: int, n: int, buckets: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the first element of a chunk, and the sign and the bucket of each."""
    first = 0
    for words in words_of(f"{case}/{output}/sketch/{row}", -(-n // 4)):
        words = words.ravel()[: n - first].astype(np.int64)
        yield first, 1.0 - 2.0 * (words & 1), (words >> 1) * buckets >> 31
        first += len(words)


def sketch(
    case: str, refsd: str, truth: Mapping[str, np.ndarray], honest: Mapping[str, Mapping[str, np.ndarray]]
) -> GoldenSketch:
    """Sketch a golden. honest: numerics -> the honest run's outputs

    Raises BadInput for a truth that is not finite.
    """
    buckets = max(1, _NUMBERS // ROWS // max(len(truth), 1))
    sums, notes = {}, {}
    for output, y in truth.items():
        if not np.isfinite(y).all():
            raise BadInput(f"{case}: {output} is not finite everywhere, so it has no sketch")
        sums[output] = sums_of(case, output, y, buckets)
        digest = hashlib.sha256(np.ascontiguousarray(y).tobytes()).hexdigest()
        rms = math.sqrt(float(np.mean(np.square(y)))) if y.size else 0.0
        plain = OutputNote(y.shape, digest, rms)
        near = {}
        for numerics, run in honest.items():
            error = np.asarray(run[output], np.float64) - y
            worst = bound(case, output, plain, sums[output], run[output]).worst
            near[numerics] = (math.sqrt(float(np.mean(np.square(error)))) if y.size else 0.0, worst)
        notes[output] = msgspec.structs.replace(plain, honest=near)
    return GoldenSketch(SketchNote(case, refsd, notes), sums)


def bound(case: str, output: str, note: OutputNote, sums: np.ndarray, actual: np.ndarray) -> Bound:
    """Bound the error of an output of the right shape, all of it finite."""
    n, buckets = math.prod(note.shape), sums.shape[1]
    error = sums_of(case, output, actual, buckets) - sums
    rms = math.sqrt(float(np.mean(np.sum(error**2, axis=1))) / max(n, 1))
    if not n:
        return Bound(0.0, 0.0, (), 0.0, 0.0)
    largest, total = np.zeros(n), np.zeros(n)
    for r in range(ROWS):
        for first, signs, bucket in _places(case, output, r, n, buckets):
            chunk = slice(first, first + len(bucket))
            found_there = error[r, bucket]
            np.maximum(largest[chunk], np.abs(found_there), out=largest[chunk])
            total[chunk] += signs * found_there
    i = int(np.argmax(np.abs(total)))
    moved = _MOVED * note.rms * math.sqrt(n / buckets)
    at = tuple(int(k) for k in np.unravel_index(i, note.shape))
    return Bound(rms, float(largest.max()) + moved, at, float(total[i]) / ROWS, n * 2.0**-ROWS)


def encode(golden: GoldenSketch) -> bytes:
    """The bytes of a sketch's file: safetensors, with the note in its header."""
    return safetensors.numpy.save(golden.sums, {_NOTE: msgspec.json.encode(golden.note).decode()})


def decode(data: bytes, name: str) -> GoldenSketch:
    """Read a sketch's file. name: for messages. Raises BadInput for any other file."""
    try:
        tensors = safetensors.numpy.load(data)
        length = int.from_bytes(data[:8], "little")
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, dict])
        note = msgspec.json.decode(header["__metadata__"][_NOTE], type=SketchNote)
    except (safetensors.SafetensorError, msgspec.DecodeError, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"{name}: not a sketch of `refsd golden sketch`: {' '.join(str(error).split())}") from None
    for output in note.outputs:
        y = tensors.get(output)
        if y is None or y.ndim != 2 or y.shape[0] != ROWS or y.dtype != np.float64 or not y.shape[1]:
            raise BadInput(f"{name}: {output} has no {ROWS} rows of sums in float64: make the sketch again")
    return GoldenSketch(note, tensors)
