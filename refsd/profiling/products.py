"""Ask in which types a product holds its factors and its result.

All numbers are powers of two or sums of two of them, which every floating-point type down to bfloat16 holds; only
the bit in question may get lost. A row of x is one question, so that an operation is called once for many.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from refsd.numerics.tensor import stored
from refsd.profiling.few_bits import rule_of
from refsd.profiling.question import Finding, Questioner, Refused
from refsd.profiling.types import significand, type_of

# asked, x [rows, K], w [O, K], the weight's dtype (float32) -> x w^T [rows, O]
Dot = Callable[..., np.ndarray]
Ask = Callable[[Questioner], list[Finding]]

_K = 64  # terms of a product
_MANY = 32  # rows of either factor
_NAMES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}
# Factors are asked to 2^-23, the last bit of float32, in which they are handed over; a result to float64's.
_FACTOR, _RESULT = np.arange(1, 24), np.arange(1, 53)


def linear(questioner: Questioner, x: np.ndarray, w: np.ndarray, dtype=np.float32) -> np.ndarray:
    """Multiply; where an engine rounds x to few bits, let the weight hold x, and x a weight of ones."""
    rule, _ = rule_of(questioner, _NAMES[np.dtype(dtype)])
    return plain_linear(questioner, x, w, dtype) if rule is None else anchored_linear(questioner, w, x, dtype).T


def anchored_linear(questioner: Questioner, x: np.ndarray, w: np.ndarray, dtype=np.float32) -> np.ndarray:
    """Multiply; where an engine rounds x to few bits, add a term of weight 0 that makes its scale 1."""
    rule, _ = rule_of(questioner, _NAMES[np.dtype(dtype)])
    if rule is not None and rule.block:
        raise Refused(f"activations in {rule} hide it")
    if rule is not None:
        x = np.hstack([x, np.full((len(x), 1), rule.reach)])
        w = np.hstack([w, np.zeros((len(w), 1))])
    return plain_linear(questioner, x, w, dtype)


def plain_linear(questioner: Questioner, x: np.ndarray, w: np.ndarray, dtype=np.float32) -> np.ndarray:
    rows, weight = _many(x), _many(w)
    y = questioner.ask("linear", (len(rows), len(weight)), x=rows, weight=stored(weight.astype(dtype)))
    return y[: len(x), : len(w)]


def windows(questioner: Questioner, x: np.ndarray, w: np.ndarray, dtype=np.float32) -> np.ndarray:
    """A 3x3 filter of stride 3, of which the middle alone counts: no window shares a pixel with another.

    dtype: in which the filter is stored
    """
    rows, K = x.shape
    image = np.zeros((1, K, 3, 3 * rows), np.float32)
    image[0, :, 1, 1::3] = x.T
    filters = _many(w)
    weight = np.zeros((len(filters), K, 3, 3), dtype)
    weight[:, :, 1, 1] = filters
    y = questioner.ask("conv2d", (1, len(filters), 1, rows), {"stride": 3}, x=image, weight=stored(weight))
    return y[0, : len(w), 0].T


def pixels(questioner: Questioner, x: np.ndarray, w: np.ndarray, dtype=np.float32) -> np.ndarray:
    """A 1x1 filter: its products are the channels alone."""
    filters = _many(w).astype(dtype)[:, :, None, None]
    image = np.ascontiguousarray(x.T)[None, :, None]
    return questioner.ask("conv2d", (1, len(filters), 1, len(x)), x=image, weight=stored(filters))[0, : len(w), 0].T


def _many(rows: np.ndarray) -> np.ndarray:
    """Repeat rows until there are _MANY: engines multiply a few by other code than the matrices of a model."""
    return rows if len(rows) >= _MANY else np.resize(rows, (_MANY, *rows.shape[1:]))


def with_halves(dot: Dot) -> Dot:
    """The same product with a float16 weight."""
    return partial(dot, dtype=np.float16)


def first_terms(*columns) -> np.ndarray:
    """Rows whose first terms are given and whose other terms are 0. -> [rows, K]"""
    terms = np.broadcast_arrays(*columns, np.zeros(1))[:-1]
    x = np.zeros((len(terms[0]), _K), np.float32)
    x[:, : len(terms)] = np.stack(terms, axis=1)
    return x


def activations(dot: Dot, op: str, aspect: str = "activations") -> Ask:
    """Return the question in which type the product holds x."""
    return _factor(lambda questioner, rows, ones: dot(questioner, rows, ones)[:, 0], op, aspect)


def weights(dot: Dot, op: str) -> Ask:
    """Return the question in which type the product holds a float32 weight."""
    return _factor(lambda questioner, rows, ones: dot(questioner, ones, rows)[0], op, "weights")


def _factor(product: Callable[..., np.ndarray], op: str, aspect: str) -> Ask:
    """Ask for (1 + 2^-k) 1, and for (1 + 2^-k) - 1: a narrow result loses the first, a narrow sum the second.

    product: asked, rows of the factor in question [rows, K], the other factor [1, K] -> [rows]
    """

    def ask(questioner: Questioner) -> list[Finding]:
        small, ones = 2.0**-_FACTOR, np.ones((1, _K), np.float32)
        alone = product(questioner, first_terms(1 + small), ones)
        apart = product(questioner, first_terms(1 + small, -1), ones)
        bits = significand((alone == 1 + small) | (apart == small))
        wide = bool(product(questioner, first_terms(np.array([2.0**17])), ones * np.float32(2.0**-10))[0] == 2.0**7)
        return [Finding(op, aspect, type_of(bits, wide), evidence(bits, len(small), wide, "1"))]

    return ask


def evidence(bits: int, asked: int, wide: bool, lost: str) -> str:
    """Say what was lost. wide: whether 2^17 came back, which is told where the significand leaves two types"""
    if bits > asked:
        return f"1 + 2^-{asked} came back whole"
    large = f"; 2^17 came back as {'itself' if wide else 'something else'}" if bits == 11 else ""
    return f"1 + 2^-{bits} came back as {lost}{large}"


def result(dot: Dot, op: str) -> Ask:
    """Return the question in which type the product's result is stored.

    It is 1 + 2^-k, a sum of two products whose factors any type holds; and the sum of four times 2^15.
    """

    def ask(questioner: Questioner) -> list[Finding]:
        w = np.ones((2, _K), np.float32)
        w[1, 1] = 2.0**-24
        k = _RESULT.astype(float)
        high = dot(questioner, first_terms(1, 2.0 ** -k[:24]), w[:1])[:, 0]
        low = dot(questioner, first_terms(1, 2.0 ** (24 - k[24:])), w[1:])[:, 0]
        bits = significand(np.append(high, low) == 1 + 2.0**-k)
        large = 2.0**15
        wide = bool(dot(questioner, first_terms(np.array([large]), large, large, large), w[:1])[0, 0] == 4 * large)
        return [Finding(op, "result", type_of(bits, wide), evidence(bits, len(k), wide, "1"))]

    return ask
