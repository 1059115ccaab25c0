"""Ask in which type a product accumulates, and in which order.

    M + u - M = u, unless the sum held M and u at once and had no bit for u

M = 1.5 2^b u is put at one place, -M at another and u at a third. The least b that loses u counts the accumulator's
bits; the places where u survives tell the order of the sum, as FPRev (Xie et al. 2024, arXiv 2411.00442) reveals
the tree of a summation.
"""

import re

import numpy as np

from refsd.numerics.profiles import Float16Sums
from refsd.profiling.products import Ask, Dot, first_terms
from refsd.profiling.question import Finding, Questioner
from refsd.profiling.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

# u, and the bits that M has above it. 1.5 2^15 fits float16.
_SMALL = 2.0**-9
_BITS = np.arange(4, 25)
_NAMES = {8: BFLOAT16, 11: FLOAT16, 24: FLOAT32}
# For the order: M / u is beyond float32, and 256 u are, too.
_TINY, _LARGE = 2.0**-18, 1.5 * 2.0**15


def cancelling(K: int, at: int, against: int) -> np.ndarray:
    """Make rows M at `at`, -M at `against` and u at each other place, for each of _BITS. -> [K - 2, bits, K]"""
    places = np.array([k for k in range(K) if k not in (at, against)])
    x = np.zeros((len(places), len(_BITS), K), np.float32)
    x[:, :, at] = 1.5 * _SMALL * 2.0**_BITS
    x[:, :, against] = -x[:, :, at]
    x[np.arange(len(places)), :, places] = _SMALL
    return x


def bits_of_places(survives: np.ndarray) -> np.ndarray:
    """Count the bits of the sum that meets u, place by place. survives: [places, bits] -> [places]; 25 if all do"""
    lost = ~survives
    return np.where(lost.any(axis=1), _BITS[lost.argmax(axis=1)], _BITS[-1] + 1)


def accumulator(dot: Dot, op: str, K: int, aspect: str = "sum") -> Ask:
    """Return the question in which type K products are added up, and how many at once."""

    def ask(questioner: Questioner) -> list[Finding]:
        ones = np.ones((1, K), np.float32)
        for against in (K - 1, K // 2, 1):
            x = cancelling(K, 0, against)
            y = dot(questioner, x.reshape(-1, K), ones).reshape(x.shape[:2])
            bits = bits_of_places(y == _SMALL)
            least = int(bits.min())
            if least <= _BITS[-1]:
                name = _NAMES.get(least, f"{least} bits")
                evidence = (
                    f"1.5 2^{least} + 1 - 1.5 2^{least} gave 0 at {np.sum(bits == least)} of {len(bits)} places"
                )
                if name != FLOAT32:
                    rows = neighbours(K, least + 2)
                    name += in_words(structure(dot(questioner, rows, ones)[:, 0] != _SMALL, K))
                return [Finding(op, aspect, name, evidence)]
        evidence = f"1.5 2^{_BITS[-1]} + 1 - 1.5 2^{_BITS[-1]} gave 1 at every place"
        return [Finding(op, aspect, FLOAT64, evidence)]

    return ask


def neighbours(K: int, bits: int) -> np.ndarray:
    """Make rows u at the first place, M at i, -M at i + 1, for each i from 1 on. -> [K - 2, K]"""
    x = np.zeros((K - 2, K), np.float32)
    row = np.arange(K - 2)
    x[:, 0] = _SMALL
    x[row, row + 1] = 1.5 * _SMALL * 2.0**bits
    x[row, row + 2] = -x[row, row + 1]
    return x


def structure(lost: np.ndarray, K: int) -> Float16Sums:
    """Find where a narrow sum is rounded: M and -M beside each other lose u unless no rounding comes between them.

    lost: for i = 1, 2, ... [K - 2]. Beyond a run, u is in the wider sum and safe.
    """
    at = np.flatnonzero(lost) + 1
    if len(at) < 2:
        return Float16Sums(int(at[0]) + 1 if len(at) else 1)
    step, end = int(at[1] - at[0]), int(at[-1]) + 1
    return Float16Sums(step, end if end < K - step else 0)


def in_words(sums: Float16Sums) -> str:
    step = f", {sums.step} products at once" if sums.step > 1 else ""
    return step + (f", a new sum every {sums.run}" if sums.run else "")


def float16_sums(value: str) -> Float16Sums | None:
    """Read `accumulator`'s value back; None if it is no float16."""
    match = re.fullmatch(r"float16(?:, (\d+) products at once)?(?:, a new sum every (\d+))?", value)
    return match and Float16Sums(int(match[1] or 1), int(match[2] or 0))


def order(dot: Dot, op: str, K: int) -> Ask:
    """Return the question in which order K products are added up: how many lie between the first and each other."""

    def ask(questioner: Questioner) -> list[Finding]:
        ones = np.ones((1, K), np.float32)
        pairs = [(0, j) for j in range(1, K)]
        x = np.full((len(pairs) + 1, K), _TINY, np.float32)
        for row, (i, j) in zip(x, pairs, strict=False):
            row[i], row[j] = _LARGE, -_LARGE
        y = dot(questioner, x, ones)[:, 0] / _TINY
        if y[-1] != K:
            value, evidence = (
                "not seen",
                f"{K} times 2^-18 gave {y[-1] * _TINY:.6g}: subnormal float16 numbers are lost",
            )
        else:
            value, evidence = ordering(K - y[:-1])
        return [Finding(op, "order of the sum", value, evidence, declared=False)]

    return ask


def ordering(within: np.ndarray) -> tuple[str, str]:
    """Name the order. within: for j = 1, 2, ... the size of the smallest partial sum with the terms 0 and j

    -> value, evidence
    """
    j = np.arange(1, len(within) + 1)
    if not np.all(np.isfinite(within)) or within.max() <= 2:
        return "not seen", "no term was lost: the sum is wider than float32"
    least = int(within.min())
    evidence = (
        f"the first term meets term {within.argmin() + 1} in a sum of {least}, the last in one of {within[-1]:g}"
    )
    if np.array_equal(within, j + 1):
        return "one after the other", evidence
    if np.array_equal(np.sort(within), j + 1):
        return "one after the other, shuffled", evidence
    if np.array_equal(within, 2 ** np.ceil(np.log2(j + 1))):
        return "by halves", evidence
    if least > 2 and np.all(within[: least - 1] == least):
        return f"{least} at once", evidence
    block = int(np.argmax(within != j + 1)) + 1
    if block > 1 and np.array_equal(within[block - 1 :], -(-(j[block - 1 :] + 1) // block) * block):
        return f"sums of {block}, one after the other", f"the first term meets term {block} in a sum of {2 * block}"
    # The first term's lane has what it meets in sums of 2, 3, 4, ...
    missing = [size for size in range(2, len(within) + 3) if size not in within]
    lane = [int(np.argmax(within == size)) + 1 for size in range(2, missing[0])]
    apart = np.diff(lane)
    if len(apart) and apart[0] > 1 and np.all(apart == apart[0]):
        return f"{apart[0]} sums side by side", evidence
    return "another order", evidence


def rounding(dot: Dot, op: str) -> Ask:
    """Return the question how the sum is rounded: of 1 + 3/4, 1 + 1/2 and 1 - 1/4 of a unit in the last place."""

    def ask(questioner: Questioner) -> list[Finding]:
        for bits, name in ((24, FLOAT32), (11, FLOAT16), (8, BFLOAT16)):
            unit = 2.0 ** (1 - bits)
            # The second term is x 2^-13, so that float16 holds x.
            x = np.array([unit * 3 / 4, unit / 2, unit * 3 / 2, -unit / 8]) * 2.0**13
            w = np.ones((1, 64), np.float32)
            w[0, 1] = 2.0**-13
            y = (dot(questioner, first_terms(1, x), w)[:, 0] - 1) / unit
            value = _ROUNDINGS.get(tuple(y))
            if value is not None:
                gave = ", ".join(f"{v:g}" for v in y)
                evidence = f"in {name}: 1 + 3/4, 1/2, 3/2 and -1/8 of the last place gave 1 + {gave}"
                return [Finding(op, "rounding", value, evidence, declared=False)]
        return []

    return ask


# What 3/4, 1/2, 3/2 and -1/8 of a unit in the last place of 1 become.
_ROUNDINGS = {
    (1, 0, 2, 0): "to nearest, ties to even",
    (1, 1, 2, 0): "to nearest, ties away from zero",
    (0, 0, 1, -0.5): "toward zero",
    (0, 0, 1, 0): "truncated after alignment",
    (0.75, 0.5, 1.5, -0.125): "not rounded",
}


def fused(dot: Dot, op: str) -> Ask:
    """Return the question whether products are rounded before they are added: (1 + 2^-12)^2 - (1 + 2^-11) = 2^-24.

    Put the square at each later position in turn, so that it is added to the running sum of the first term.
    """

    def ask(questioner: Questioner) -> list[Finding]:
        K = 64
        places = np.arange(1, K)
        a = np.float32(1 + 2.0**-12)
        x, w = np.zeros((K, K), np.float32), np.zeros((K, K), np.float32)
        x[:, 0], w[:, 0] = -np.float32(1 + 2.0**-11), 1
        x[places, places] = w[places, places] = a
        w[0, 0] = x[0, 1] = 1
        x[0, 0], w[0, 1] = -1, a
        product = dot(questioner, x, w)
        y = np.diagonal(product)[1:]
        if product[0, 0] != 2.0**-12 or dot(questioner, w, x)[0, 0] != 2.0**-12:
            return []  # a factor is too narrow to ask
        exact = np.isclose(y, 2.0**-24, rtol=1e-3, atol=0)
        if exact.any():
            value = "exact (FMA, or a wider sum)"
        elif np.all(y == 0):
            value = "rounded, then added"
        else:
            return []  # the sum is too narrow to ask
        evidence = f"(1 + 2^-12)^2 - (1 + 2^-11) gave 2^-24 at {exact.sum()} of {len(y)} places"
        return [Finding(op, "products", value, evidence, declared=False)]

    return ask
