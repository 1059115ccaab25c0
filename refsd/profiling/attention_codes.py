"""Ask whether attention rounds its queries and keys to int8, and which tokens share a scale.

Each token is smaller than the one before, and a channel of all keys is large, so that each rule gives other codes.
The answer is held against each rule: the nearest is named, if storage alone could not explain the answer.
"""

from functools import cache
from itertools import product

import ml_dtypes
import numpy as np

from refsd.kernels.attention import attention
from refsd.kernels.attention_int8 import attention_int8, smoothed
from refsd.kernels.philox import philox_successive
from refsd.numerics.profiles import DTYPES
from refsd.numerics.quantization import Int8Scores
from refsd.profiling.question import Finding, Questioner

_L, _J, _D = 256, 192, 64
_BLOCKS = (1, 16, 32, 64, 128, _L)
_SMALLER = 0.99  # than the token before
# The error of a rule's answer, as a share of what the rule rounds off, that storing the answer may add.
_SAME = 0.35

# Smoothed keys may be stored; others are stored exactly.
_STORED = {True: ("float32", "float16", "bfloat16"), False: ("float32",)}

RULES = {str(rule): rule for rule in (Int8Scores(*sizes) for sizes in product(_BLOCKS, _BLOCKS, (True, False)))}


@cache
def _probe() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One head: q [1, L, 1, D], k [1, J, 1, D], v [1, J, 1, D], in float32"""

    def numbers(tokens: int, key: int) -> np.ndarray:
        words = philox_successive(np.uint64(0), tokens * _D, np.uint64(0), np.uint64(key))[:, 0]
        return (words.astype(np.float64) / 2.0**31 - 1).reshape(1, tokens, 1, _D)

    q, k, v = numbers(_L, 1), numbers(_J, 2), numbers(_J, 3)
    for x in (q, k):
        x *= 3 * _SMALLER ** np.arange(x.shape[1])[:, None, None]
    k[..., 0] += 5
    q, k, v = (x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (q, k, v))
    return q, k, v


@cache
def _expected(rule: Int8Scores | None, dtype: str) -> np.ndarray:
    """The answer under a rule, the smoothed keys stored in a dtype."""
    q, k, v = (x.astype(np.float64) for x in _probe())
    if rule is None:
        return attention(q, k, v, 1.0)
    if rule.smooth:
        k = smoothed(k).astype(DTYPES[dtype]).astype(np.float64)
    return attention_int8(q, k, v, 1.0, rule.query_block, rule.key_block, smooth=False)


def rule_of(questioner: Questioner) -> tuple[Int8Scores | None, str]:
    """Return how the engine rounds queries and keys to int8, None if it does not, and the evidence."""
    if questioner.scores is None:
        questioner.scores = _found(questioner)
    return questioner.scores


def _found(questioner: Questioner) -> tuple[Int8Scores | None, str]:
    q, k, v = _probe()
    came = questioner.ask("attention", q.shape, {"scale": 1.0}, q=q, k=k, v=v)
    if not np.isfinite(came).all():
        return None, "not finite"

    def distance(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.sqrt(np.mean((one - other) ** 2)))

    truth = _expected(None, "float64")
    ways = [(rule, dtype) for rule in RULES.values() for dtype in _STORED[rule.smooth]]
    apart = {way: distance(came, _expected(*way)) for way in ways}
    best = min(ways, key=lambda way: apart[way])
    evidence = f"{distance(came, truth):.1g} from attention in float64, {apart[best]:.1g} from this"
    return (best[0] if apart[best] < _SAME * distance(_expected(*best), truth) else None), evidence


def scores(questioner: Questioner) -> list[Finding]:
    """Which tokens share a scale, where queries and keys are rounded to int8."""
    rule, evidence = rule_of(questioner)
    return [Finding("attention", "codes of scores", str(rule or WIDE), evidence)]


WIDE = "not in few bits"
