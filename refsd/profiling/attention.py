"""Ask in which types attention holds q, k, v, the mask, the scores, the probabilities and its sums.

Two keys whose scores differ by 1 or by 0 give exp(1) / (1 + exp(1)) = 0.73 or 1/2 of the first value, which any
type tells apart: so a lost bit of a score is seen whatever the result is stored in.
"""

import ml_dtypes
import numpy as np

from refsd.numerics.profiles import Float16Sums
from refsd.profiling import attention_codes
from refsd.profiling.question import Finding, Questioner
from refsd.profiling.sums import bits_of_places, cancelling, in_words
from refsd.profiling.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, significand, type_of

_OP = "attention"
_D = 64  # of queries, keys and values
_SEEN = 0.6  # between 1/2 and 0.73
_FACTOR = np.arange(1, 24)
# A score is seen up to 2^15, as float16 holds its factors.
_SCORE = np.arange(1, 16)
_SCALE = 2.0**9


def _attend(questioner: Questioner, q, k, v, scale=1.0, mask=None) -> np.ndarray:
    """One head. q [B, L, D], k [B, J, D], v [B, J, up to D], mask [L, J] -> [B, L, D]"""
    more = {} if mask is None else {"mask": mask[None, None]}
    v = np.pad(v, ((0, 0), (0, 0), (0, _D - v.shape[2])))
    q, k, v = (t[:, :, None] for t in (q, k, v))
    shape = (*q.shape[:3], v.shape[3])
    return questioner.ask(_OP, shape, {"scale": scale}, q=q, k=k, v=v, **more)[:, :, 0]


def _two_values(batch: int) -> np.ndarray:
    """1 and 0"""
    return np.broadcast_to(np.array([[1.0], [0.0]]), (batch, 2, 1))


def _factor(questioner: Questioner, name: str) -> Finding:
    """s = ((1 + 2^-k) - 1) 2^k against 0, for q or for k."""
    B, small = len(_FACTOR), 2.0**-_FACTOR
    one, other = np.zeros((B, 1, _D), np.float32), np.zeros((B, 1, _D), np.float32)
    one[:, 0, 0], one[:, 0, 1] = 1 + small, -1
    other[:, 0, 0] = other[:, 0, 1] = 1 / (small * _SCALE)
    query, key = (one, other) if name == "q" else (other, one)
    keys = np.concatenate([key, np.zeros_like(key)], axis=1)
    kept = _attend(questioner, query, keys, _two_values(B), _SCALE)[:, 0, 0] > _SEEN
    bits = significand(kept)
    large, faint = np.zeros((1, 2, _D), np.float32), np.zeros((1, 2, _D), np.float32)
    large[:, 0, 0], faint[:, 0, 0] = 2.0**17, 2.0**-17
    pair = (large[:, :1], faint) if name == "q" else (faint[:, :1], large)
    wide = bool(_SEEN < _attend(questioner, *pair, _two_values(1))[0, 0, 0] < 0.8)
    evidence = f"1 + 2^-{bits} counted as 1" if bits <= B else f"1 + 2^-{B} counted as itself"
    return Finding(_OP, name, type_of(bits, wide), evidence)


def factors(questioner: Questioner) -> list[Finding]:
    if attention_codes.rule_of(questioner)[0] is not None:
        return []  # codes under a shared scale have no type of their own
    return [_factor(questioner, "q"), _factor(questioner, "k")]


def values(questioner: Questioner) -> list[Finding]:
    """v alone, v of two equal keys that cancels, and a result of two values that any type holds."""
    zero = np.zeros((1, 2, _D), np.float32)
    small = 2.0**-_FACTOR
    E = len(small)
    alone = _attend(questioner, zero[:, :1], zero[:, :1], (1 + small)[None, None])[0, 0, :E]
    apart = _attend(questioner, zero[:, :1], zero, np.stack([1 + small, -np.ones(E)])[None])[0, 0, :E]
    bits = significand((alone == 1 + small) | (apart == small / 2))
    wide = bool(
        _attend(questioner, zero[:, :1], zero, np.array([[[2.0**17], [-(2.0**17) + 2.0**10]]]))[0, 0, 0] == 2.0**9
    )
    shown = f"1 + 2^-{bits} counted as 1" if bits <= E else f"1 + 2^-{E} counted as itself"
    k = np.arange(1, 51)
    stored = _attend(questioner, zero[:, :1], zero, np.stack([2 * np.ones(50), 2.0 ** (1.0 - k)])[None])[0, 0, :50]
    held = significand(stored == 1 + 2.0**-k)
    result = f"1 + 2^-{held} came back as 1" if held <= 50 else "1 + 2^-50 came back whole"
    return [
        Finding(_OP, "v", type_of(bits, wide), shown),
        Finding(_OP, "result", FLOAT64 if held > 50 else type_of(held), result),
    ]


def mask(questioner: Questioner) -> list[Finding]:
    """2^k + 1 against 2^k; 2^17 against itself."""
    L = len(_FACTOR)
    large = np.append(2.0 ** np.arange(1, L), 2.0**23)[:, None]
    both = large + np.array([[1.0, 0.0]])
    zero = np.zeros((1, L, _D), np.float32)
    y = _attend(questioner, zero, zero[:, :2], _two_values(1), 1.0, both)[0, :, 0]
    bits = significand(y > _SEEN)
    wide = bool(y[15] == 0.5 or y[15] > _SEEN)
    evidence = f"2^{bits} + 1 counted as 2^{bits}" if bits <= L else f"2^{L} + 1 counted as itself"
    return [Finding(_OP, "mask", type_of(min(bits, 24), wide), evidence)]


def scores(questioner: Questioner) -> list[Finding]:
    """A score of 2^b + 1, whose factors any type holds, against one of 2^b; and the sum that makes scores."""
    if attention_codes.rule_of(questioner)[0] is not None:
        return []
    B = len(_SCORE)
    q, k = np.zeros((B, 1, _D), np.float32), np.zeros((B, 2, _D), np.float32)
    q[:, 0, :2] = 1
    k[:, :, 0] = (2.0**_SCORE)[:, None]
    k[:, 0, 1] = 1
    bits = significand(_attend(questioner, q, k, _two_values(B))[:, 0, 0] > _SEEN)
    stored = FLOAT32 if bits > B else type_of(bits)
    evidence = f"2^{bits} + 1 counted as 2^{bits}" if bits <= B else f"2^{B} + 1 counted as itself"
    found = [Finding(_OP, "scores", stored, evidence)]

    x = cancelling(_D, 0, _D - 1)
    keys = np.zeros((1, 2, _D), np.float32)
    keys[:, 0] = 1
    y = _attend(questioner, x.reshape(1, -1, _D), keys, _two_values(1), _SCALE)[0, :, 0]
    least = int(bits_of_places((y > _SEEN).reshape(x.shape[:2])).min())
    bits, kept = min(least, 24), "1 at every place" if least > 24 else "0"
    evidence = f"1.5 2^{bits} + 1 - 1.5 2^{bits} counted as {kept}"
    return [*found, Finding(_OP, "sum of scores", type_of(least), evidence)]


def probabilities(questioner: Questioner) -> list[Finding]:
    """p1 - p2 of scores that differ by little, p = e / (1 + e): rounded before the division, after it, or not."""
    d = np.arange(1, 33) * 2.0**-9
    below = np.stack([-d, np.zeros_like(d)], axis=1)
    zero = np.zeros((1, len(d), _D), np.float32)
    v = np.ones((1, 2, _D), np.float32)
    v[:, 1] = -1
    y = _attend(questioner, zero, zero[:, :2], v, 1.0, below)[0, :, 0]
    e = np.exp(-d)
    truth = (e - 1) / (1 + e)
    candidates = {FLOAT32: truth}
    for name, dtype in ((BFLOAT16, ml_dtypes.bfloat16), (FLOAT16, np.float16)):

        def rounded(p, dtype=dtype):
            return np.asarray(p).astype(dtype).astype(np.float64)

        candidates[f"{name}"] = rounded(e / (1 + e)) - rounded(1 / (1 + e))
        candidates[f"{name}, before the division"] = (rounded(e) - 1) / (1 + e)
        candidates[f"{name}, before the sum and the division"] = (rounded(e) - 1) / (1 + rounded(e))
    errors = {name: float(np.sqrt(np.mean((y - p) ** 2) / np.mean(truth**2))) for name, p in candidates.items()}
    if not np.isfinite(list(errors.values())).all():
        return []
    best = min(errors, key=lambda name: errors[name])
    exact = errors[FLOAT32]
    if errors[best] > exact / 2:  # float32 rounds them by 5e-07 of the difference, a result in it by 3e-08
        best = FLOAT32 if exact > 1e-7 else FLOAT64
    evidence = f"exp(-k 2^-9) - 1 over their sum: {errors.get(best, exact):.1g} from that, {exact:.1g} from exact"
    return [Finding(_OP, "probabilities", best.partition(",")[0], evidence)]


def value_sum(questioner: Questioner) -> list[Finding]:
    """256 equal keys, the values 1, t, t, ...: a sum too narrow for 1 + t stays at 1."""
    J = 256
    zero = np.zeros((1, J, _D), np.float32)
    v = np.ones((1, J, 2))
    v[:, 1:] = 2.0**-9, 2.0**-12
    y = _attend(questioner, zero[:, :1], zero, v)[0, 0, :2] * J
    exact = 1 + (J - 1) * v[0, 1]
    kept = np.abs(y - exact) < np.abs(y - 1)
    kind = FLOAT32 if kept[1] else FLOAT16 if kept[0] else BFLOAT16
    # Only the terms of the run that begins with 1 are lost. A result in bfloat16 counts them to 16.
    lost = J - (y[1] - 1) / v[0, 1, 1]
    if kept[1] and lost > 24:
        kind = FLOAT16 + in_words(Float16Sums(run=2 ** round(np.log2(lost))))
    wider = " (float32 or wider)" if kind == FLOAT32 else ""
    evidence = f"1 and {J - 1} times 2^-12 gave {y[1]:.6g}, exactly {exact[1]:.6g}{wider}"
    return [Finding(_OP, "sum of values", kind, evidence)]
