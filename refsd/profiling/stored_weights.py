"""Ask what a linear layer does to its input, and to its weight, for each storage type of the weight.

The weight is a dense one of that type, whose values are known. A single term of x is read back by dividing by them.
"""

import itertools

import numpy as np

from refsd.golden.recipe import Recipe, realize
from refsd.numerics.profiles import INT8_GROUPS
from refsd.numerics.quantization import Quantization, rounded
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor
from refsd.profiling.few_bits import rule_of
from refsd.profiling.products import Ask
from refsd.profiling.question import Finding, Questioner
from refsd.profiling.types import FLOAT32, significand, type_of

TYPES = (
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "mxfp4",
)
_O, _K = 16, 768
_POWERS = np.arange(1, 23)
# How far from 0.4 the 127 stands that drowns it -> what that says of the input.
BLOCKS = {32: "8 bits in blocks of 32", 256: "8 bits in blocks of 256", _K: "8 bits in rows"}
# Codes between two whole numbers, beside a 127 whose scale is 1, and how the other roundings of them are called.
_BETWEEN = (5.7, 5.3, -5.7)
TOWARD_ZERO, OF_128 = ", rounded toward zero", ", a scale of max |x| / 128"
_CUT = 127 / 128  # of the largest number is left where its code would be 128
# The last one's 127th is no float16, so that it comes back changed if a scale is stored as one.
_UNEVEN = 100.37
_ALONE = np.concatenate([1 + 2.0**-_POWERS, [1, 2.0**17, _UNEVEN]])
# The largest error of weights that are rounded to so many bits, and 127 times the rounded once more.
_ERRORS = {FLOAT32: 2.0**-17, "11 bits": 2.0**-9.5, "8 bits": 2.0**-6.5}
_LOUD = 512.0  # terms beyond it times a weight may leave float16
_READ = np.arange(5, _K, 12)  # terms of which every weight is read back


def beside(weight_type: str) -> Ask:
    """Return the question for one storage type."""

    def ask(questioner: Questioner) -> list[Finding]:
        rule, evidence = rule_of(questioner, weight_type) if weight_type in SCALAR_TYPES else (None, "")
        weight = realize(Recipe((_O, _K), weight_type, exponent=-15), f"profile/{weight_type}")
        w = np.asarray(weight.values(), np.float64)
        if rule is not None:
            kind, worst = _weight(_read(questioner, weight, rule), w[:, _READ])
            return _findings(weight_type, str(rule), evidence, kind, worst)
        row, term, faint = _terms(w)
        parts = np.cumsum([len(BLOCKS), len(_ALONE), len(_READ)])
        x = np.zeros((parts[-1] + len(_BETWEEN), _K), np.float32)
        pairs, alone, single, between = np.split(x, parts)
        pairs[:, term] = 0.4
        pairs[range(len(faint)), faint] = 127
        alone[:, term] = _ALONE
        single[range(len(_READ)), _READ] = 127  # a whole number of steps of 8 bits
        between[:, term], between[:, faint[0]] = _BETWEEN, 127

        y = questioner.ask("linear", (len(x), _O), x=x, weight=weight)
        y_pairs, y_alone, y_single, y_between = np.split(y, parts)
        came = y_alone[:, row] / w[row, term]
        held = 127 * (_CUT if np.isclose(came[len(_POWERS)], _CUT, rtol=2.0**-9) else 1)
        small = (y_pairs[:, row] - held * w[row, faint]) / w[row, term]
        codes = (y_between[:, row] - held * w[row, faint[0]]) / w[row, term]
        value, evidence = _activation(small, came, codes)
        kind, worst = _weight(y_single.T / 127, w[:, _READ])
        return _findings(weight_type, value, evidence, kind, worst)

    return ask


def _findings(weight_type: str, value: str, evidence: str, kind: str, worst: str) -> list[Finding]:
    return [
        Finding("linear", f"activations, {weight_type} weights", value, evidence),
        Finding("linear", f"{weight_type} weights", kind, worst),
    ]


def _read(questioner: Questioner, weight: StoredTensor, rule: Quantization) -> np.ndarray:
    """Read weights back by single terms of a number whose scale is a power of two. -> [O, terms]"""
    largest = rule.reach
    while largest > _LOUD:
        largest /= 2
    single = np.zeros((len(_READ), _K), np.float32)
    single[range(len(_READ)), _READ] = largest
    held = rounded(np.full((1, 1), float(largest)), rule, lambda y: y)
    return questioner.ask("linear", (len(_READ), _O), x=single, weight=weight).T / held.item()


def _terms(w: np.ndarray) -> tuple[int, int, list[int]]:
    """Choose a large weight of the first block, and beside it, in its block of 256 and beyond small ones but not 0.

    -> its row, its term, the others' terms
    """
    row, term = np.unravel_index(np.abs(w[:, :32]).argmax(), (len(w), 32))
    size = np.where(w[row] == 0, np.inf, np.abs(w[row]))
    size[term] = np.inf
    bounds = (0, *BLOCKS)
    return int(row), int(term), [int(size[a:b].argmin()) + a for a, b in itertools.pairwise(bounds)]


def _activation(small: np.ndarray, alone: np.ndarray, codes: np.ndarray) -> tuple[str, str]:
    """Name the type of the input. small: 0.4 as it came back; alone: _ALONE, and codes: _BETWEEN, likewise"""
    lost = [length for length, seen in zip(BLOCKS, small, strict=True) if abs(seen) < 0.2]
    *powers, one, large, uneven = alone
    if lost:
        wide = lost[-1] == INT8_GROUPS.block and bool(np.isclose(uneven, _UNEVEN, rtol=2.0**-15))
        kind = str(INT8_GROUPS) if wide else BLOCKS[lost[-1]]
        evidence = f"0.4 came back as 0 beside 127, up to {lost[-1]} terms apart; {_UNEVEN} as {uneven:.6g}"
        if np.isclose(one, _CUT, rtol=2.0**-9):
            return kind + OF_128, f"{evidence}; 1 alone as {one:.5g}"
        if np.allclose(codes, np.trunc(_BETWEEN), atol=0.1):
            came = ", ".join(f"{code:.3g}" for code in codes)
            return kind + TOWARD_ZERO, f"{evidence}; {', '.join(map(str, _BETWEEN))} beside 127 as {came}"
        return kind, evidence
    bits = significand(np.array(powers) != one)
    wide = bool(np.isclose(large, 2.0**17, rtol=1e-2))
    if bits > len(_POWERS):
        return type_of(bits), f"1 + 2^-{len(_POWERS)} came back as another number than 1"
    return type_of(bits, wide), f"1 + 2^-{bits} came back as the same as 1"


def _weight(found: np.ndarray, w: np.ndarray) -> tuple[str, str]:
    """Name the type of the weights by their largest error, relative to the largest weight."""
    error = float(np.abs(found - w).max() / np.abs(w).max())
    kind = next((name for name, most in _ERRORS.items() if error < most), "other values")
    return kind, f"weights came back within {error:.2g} of the largest"
