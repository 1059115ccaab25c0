"""Ask whether a linear layer rounds its input to few bits, and under which scales.

The weight is the identity, so that each number of x comes back as it was multiplied. Rows differ in size, and a
power of two maps the largest number of half of them to that of int8, torchao's int8 or FP8, or their span to 255:
ties are ties. The answer is held against each rule: the one whose answer is nearest is named, and with it whether
quotients are rounded to the type of the answer. Then fewer rows are asked. Where no rule fits, numbers are small,
so that none is an outlier, and then one is made larger until its column is no longer rounded.
"""

import re
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import ml_dtypes
import numpy as np

from refsd.kernels.philox import philox_successive
from refsd.numerics.profiles import (
    FP8_TENSOR,
    INT8_GROUPS,
    INT8_ROWS,
    MXFP4,
    MXFP8,
    NVFP4,
    TORCHAO_ROWS,
    UINT8_TENSOR,
)
from refsd.numerics.quantization import Quantization, rounded
from refsd.numerics.tensor import GROUPED_TYPES, SCALAR_TYPES, Grouping, Scaling, StoredTensor, stored
from refsd.profiling.question import Finding, Questioner

Ask = Callable[[Questioner], list[Finding]]

# Weights in few bits, of which an engine may round the input to few bits, too.
TYPES = ("f8_e4m3", "f8_e5m2", "i8", "nvfp4_comfy", "mxfp8")
_K = 64
_SIZES = (2, -3, 2, -9, 0, -5, 0, 1) * 4  # exponents of the rows' sizes
_ENDS = {127.0: -127.0, 127.5: -127.5, 448.0: -448.0, 192.0: -63.0}
# The error of a rule's answer, as a share of what the rule rounds off, that storing the answer may add.
_SAME = 0.35
_SHARE = 0.4  # of the rows of one set
_SMALL = -9  # exponent of numbers none of which is an outlier
# What may be the least outlier: the numbers of bfloat16 from 4 to 32768.
_OUTLIERS = np.arange(0x4080, 0x4701, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
_NARROW = (ml_dtypes.bfloat16, np.float16)


def _rules() -> Iterator[Quantization]:
    types = (INT8_ROWS, FP8_TENSOR, replace(FP8_TENSOR, type="f8_e5m2"))
    for base, scale, rounding in product(types, ("row", "tensor", "none"), ("even", "away", "zero")):
        yield replace(base, scale=scale, rounding=rounding)
    for scale, rounding in product(("row", "tensor"), ("even", "away", "zero")):
        yield replace(UINT8_TENSOR, scale=scale, rounding=rounding)
    yield from (INT8_GROUPS, NVFP4, TORCHAO_ROWS)
    yield from (replace(rule, block_scale=scale) for rule in (MXFP8, MXFP4) for scale in ("e8m0", "e8m0_floor"))


RULES = {str(rule): rule for rule in _rules()}
_FEWEST = re.compile(r", from (\d+) rows on$")
_KEPT = re.compile(r", columns with numbers from ([\d.e+]+) on as they are$")
_WIDE = ", x / scale in float32"


def rule_named(words: str) -> Quantization | None:
    """Return the rule that reports call so, with its quotients and its fewest rows; None if it is none of RULES."""
    numbers = {}
    for field, pattern in (("outliers", _KEPT), ("fewest", _FEWEST)):
        if found := pattern.search(words):
            numbers[field], words = type(getattr(Quantization, field))(found[1]), pattern.sub("", words)
    rule = RULES.get(words.removesuffix(_WIDE))
    wide = {"quotient": "wide"} if words.endswith(_WIDE) else {}
    return rule and replace(rule, **numbers, **wide)


@cache
def _probe(largest: float) -> np.ndarray:
    """Rows of numbers and of ties, the first of each row the largest, the second the least."""
    words = philox_successive(np.uint64(0), len(_SIZES) * _K, np.uint64(0), np.uint64(int(largest)))[:, 0]
    x = (words.astype(np.float64) / 2.0**31 - 1).reshape(len(_SIZES), _K) * largest
    x[4::8] = np.rint(x[4::8] / 8) + 0.5  # ties of int8
    x = np.maximum(x, _ENDS[largest])
    x[:, :2] = largest, _ENDS[largest]
    x[1::2] *= 0.6875  # rows that no power of two leads to
    return np.ldexp(x, np.array(_SIZES)[:, None]).astype(ml_dtypes.bfloat16).astype(np.float32)


@cache  # two of 3 MB
def _expected(shift: int) -> np.ndarray:
    """Return what each rule gives: [rule, set, row, column]."""
    given = [np.ldexp(_probe(n).astype(np.float64), shift) for n in _ENDS]
    return np.array([[rounded(x, rule, lambda y: y) for x in given] for rule in RULES.values()])


def identity(weight_type: str) -> StoredTensor:
    """Return the identity matrix in a type."""
    eye = np.eye(_K, dtype=np.float32)
    if weight_type == "i8":  # without a scale it would be a tensor of integers
        return StoredTensor("i8", eye.shape, eye.astype(np.int8), Scaling(np.ones(1, np.float32)))
    if weight_type in SCALAR_TYPES:
        return stored(eye.astype(SCALAR_TYPES[weight_type]))
    table = GROUPED_TYPES[weight_type]
    group = {"nvfp4_comfy": 16, "mxfp8": 32}[weight_type]
    codes = np.where(eye == 1, np.flatnonzero(table == 1)[0], np.flatnonzero(table == 0)[0]).astype(np.uint8)
    packed = codes if len(table) > 16 else codes[:, ::2] << 4 | codes[:, 1::2]
    return StoredTensor(
        weight_type, eye.shape, packed.ravel(), Grouping(np.ones(eye.size // group, np.float32), group)
    )


def rule_of(questioner: Questioner, weight_type: str = "f32") -> tuple[Quantization | None, str]:
    """Return how the engine rounds a linear layer's input to few bits, None if it does not, and the evidence."""
    if weight_type not in questioner.rules:
        questioner.rules[weight_type] = _found(questioner, weight_type)
    return questioner.rules[weight_type]


def _found(questioner: Questioner, weight_type: str) -> tuple[Quantization | None, str]:
    """Ask with large numbers, and with small ones if no rule is found."""
    for shift in (0, _SMALL):
        rule, evidence = _nearest(questioner, identity(weight_type), shift)
        if rule is not None:
            break
    return rule, evidence


def _nearest(questioner: Questioner, weight: StoredTensor, shift: int) -> tuple[Quantization | None, str]:
    given = np.array([np.ldexp(_probe(largest), shift) for largest in _ENDS])
    came = np.array([questioner.ask("linear", x.shape, x=x, weight=weight) for x in given])
    if not np.isfinite(came).all():
        return None, "not finite"
    sizes = np.abs(given).max(axis=2)

    def errors(expected: np.ndarray) -> np.ndarray:
        """Return the RMS error of each row of each set, in units of the row's size, so that small rows count."""
        return np.sqrt(np.mean(np.square(came - expected), axis=-1)) / sizes

    whole, apart = errors(given), errors(_expected(shift))
    # In half the rows of a set scales are powers of two: storing a scale or a quotient loses nothing there.
    same = (apart < _SAME * whole).mean(axis=2).max(axis=1)
    best = max(range(len(RULES)), key=lambda i: (same[i], -np.square(apart[i]).sum()))
    evidence = f"numbers came back within {whole.max():.2g} of the largest"
    if same[best] < _SHARE:
        return None, evidence
    narrow = next((kind for kind in _NARROW if (came == came.astype(kind)).all()), np.float64)

    def stored_as(y: np.ndarray) -> np.ndarray:
        return y.astype(narrow).astype(y.dtype)

    def error(how: Quantization) -> float:
        return sum(np.square(came[i] - stored_as(rounded(x, how, stored_as))).sum() for i, x in enumerate(given))

    rule = [*RULES.values()][best]
    if rule.quotient == "storage" and not rule.block:
        rule = min(rule, replace(rule, quotient="wide"), key=error)
    x = given[np.argmax(np.square(came - given).sum(axis=(1, 2)))]

    def rounds(rows: int) -> bool:
        y, few = questioner.ask("linear", (rows, _K), x=x[:rows], weight=weight), x[:rows]
        return bool(np.square(y - stored_as(rounded(few, rule, stored_as))).sum() < np.square(y - few).sum())

    def keeps(number: float) -> bool:
        """Whether a column is not rounded if its first row has this number."""
        changed = x.copy()
        changed[0, 2] = number
        return bool((questioner.ask("linear", x.shape, x=changed, weight=weight)[1:, 2] == x[1:, 2]).all())

    fewest = 1 + bisect(range(1, len(x)), False, key=rounds)
    outliers = bisect(_OUTLIERS, False, key=keeps) if shift else len(_OUTLIERS)
    kept = {"fewest": fewest if fewest > 1 else 0, "outliers": float([*_OUTLIERS, 0][outliers])}
    return replace(rule, **kept), f"{evidence}, {apart[best].max():.2g} from this"


def activations(otherwise: Ask) -> Ask:
    """Return the question in which type a product holds x: in few bits, or what another question finds."""

    def ask(questioner: Questioner) -> list[Finding]:
        rule, evidence = rule_of(questioner)
        return otherwise(questioner) if rule is None else [Finding("linear", "activations", str(rule), evidence)]

    return ask


def beside(weight_type: str) -> Ask:
    """Return the question for one storage type of the weight."""

    def ask(questioner: Questioner) -> list[Finding]:
        rule, evidence = rule_of(questioner, weight_type)
        return [Finding("linear", f"activations, {weight_type} weights", str(rule or WIDE), evidence)]

    return ask


WIDE = "not in few bits"
