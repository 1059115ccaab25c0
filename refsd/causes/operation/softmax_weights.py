"""Find with what weights keys count in an attention's sums: not at all, twice, or by another exponential."""

from collections.abc import Iterator

import numpy as np
from numpy.polynomial import legendre

from refsd.causes.generic.error_places import index_set
from refsd.causes.operation.product_terms import told_counts
from refsd.causes.operation.row_sums import SOFTMAXES, attention_weights
from refsd.golden.operation import Inputs, Operation, Params

# The most keys whose counts are solved for, and how near to whole numbers they must be.
_MOST_KEYS, _ROUND = 1152, 0.01
_MOST_OFTEN = 16
# Of the polynomial that an exponential may be off by, and the most numbers of its powers; constants that are tried.
_DEGREE, _MOST_POWERS, _SHIFTS, _MOST_TRIED, _SAME = 9, 1 << 25, 32, 1 << 18, 1e-4


def key_counts(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if an attention counts keys otherwise than once, with their values.

    With weights p_j before a mask, sum_j c_j p_j (v_j - y) = 0 in every row: the counts c_j are the only direction
    in which all these sums vanish. A key that is hidden from all rows counts 0 times; what a mask hides from some
    alone has no weight there.
    """
    if op.name not in ("attention", "attention_softcap") or "sinks" in inputs or not np.isfinite(actual).all():
        return
    B, J = inputs["k"].shape[:2]
    mask = inputs["mask"].values() if "mask" in inputs else np.zeros(1)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if J > _MOST_KEYS or params.get("causal") or not np.isin(mask, (0, -np.inf)).all():
        return
    bare = {name: tensor for name, tensor in inputs.items() if name != "mask"}
    weights, _, y = attention_weights(op, bare, params)
    weights = weights.reshape(*y.shape[:3], J)
    if (mask != mask[:, :1, :1]).any():
        weights = weights * (mask == 0).swapaxes(1, 2)
    v = np.repeat(inputs["v"].values().astype(np.float64), y.shape[2] // inputs["v"].shape[2], axis=2)
    seen = np.broadcast_to((mask == 0).any(axis=(1, 2)), (B, J))
    counts = np.stack([_null(*t) for t in zip(weights, v, np.asarray(actual, np.float64), strict=True)])
    most = np.abs(counts * seen).max(axis=1, keepdims=True)
    clear = seen & (np.abs(counts) > most / _MOST_OFTEN)  # once, or a few times; the others are not counted
    counts /= np.array([[np.median(c[s]) if s.any() else 1.0] for c, s in zip(counts, clear, strict=True)])
    near = np.rint(counts)
    if not np.isfinite(counts).all() or np.abs(counts - near).max() > _ROUND or (near == seen).all():
        return
    texts = [_told_keys(*t) for t in zip(near, seen, strict=True)]
    if all(texts) and len({*texts}) == 1:
        texts = texts[:1]
    else:
        texts = [f"in item {i}, {words}" for i, words in enumerate(texts) if words]
    shares = weights * near[:, None, None]
    shares = shares / np.maximum(shares.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
    yield "; ".join(texts), np.einsum("blhj,bjhe->blhe", shares, v).astype(np.float32)


def _null(p: np.ndarray, v: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the c [J] with the least sum_j c_j p_j (v_j - y). p: [L, H, J], v: [J, H, E], y: [L, H, E]"""
    vv, vy, yy = np.einsum("jhe,khe->hjk", v, v), np.einsum("jhe,lhe->lhj", v, y), (y**2).sum(axis=-1)
    cross = np.einsum("lhj,lhj,lhk->jk", p, vy, p, optimize=True)
    square = np.einsum("lhj,lhk,hjk->jk", p, p, vv, optimize=True) - cross - cross.T
    square += np.einsum("lhj,lh,lhk->jk", p, yy, p, optimize=True)
    unit = 1 / np.sqrt(np.maximum(np.diag(square), np.finfo(float).tiny))
    return unit * np.linalg.eigh(square * unit[:, None] * unit)[1][:, 0]


def _told_keys(counts: np.ndarray, seen: np.ndarray) -> str:
    at = np.flatnonzero(~seen & (counts != 0))
    hidden = index_set(at, len(counts), "the keys") if len(at) else ""
    parts = [told_counts(np.where(seen, counts, 1), "the keys"), f"{hidden}, which the mask hides, are seen"]
    return " and ".join(part for part in (parts if hidden else parts[:1]) if part)


def other_exponential(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if each exponential, 2^(n + f), is off by a factor that depends on f alone.

    So it is with a polynomial in the place of 2^f: with the right weights p_j and factors h,
    sum_j p_j h(f_j) (v_j - y) = 0 in every row, from which h, a polynomial, is solved for. And with the bits of a
    number taken for a float's: 1 + f for 2^f, with n and f of the exponent less a constant.
    Source: Schraudolph 1999, A Fast, Compact Approximation of the Exponential Function.
    """
    if op.name not in SOFTMAXES or "sinks" in inputs:
        return
    weights, _, right = attention_weights(op, inputs, params)
    weights = weights.reshape(*right.shape[:-1], -1)
    if weights.size * _DEGREE > _MOST_POWERS or actual.size < 8 * _DEGREE or not np.isfinite(actual).all():
        return
    highest = weights.max(axis=-1, keepdims=True)
    exponent = np.log2(np.where(weights > 0, weights / np.where(highest > 0, highest, 1), 1))
    v = inputs["v"].values().astype(np.float64) if "v" in inputs else None
    v = None if v is None else np.repeat(v, right.shape[2] // v.shape[2], axis=2)

    def of_bits(less: float) -> np.ndarray:
        n = np.floor(exponent - less)
        shares = weights * (1 + exponent - less - n) * 2 ** (n - exponent)
        shares /= np.where(highest > 0, shares.sum(axis=-1, keepdims=True), 1)
        return shares if v is None else np.einsum("blhj,bjhe->blhe", shares, v, optimize=True)

    if weights.size <= _MOST_TRIED:
        from scipy.optimize import fminbound  # half a second, which only this search needs

        error = lambda less: float(np.square(of_bits(less) - actual).sum())
        near = min(np.arange(_SHIFTS) / _SHIFTS, key=error)
        less = np.asarray(fminbound(error, near - 1 / _SHIFTS, near + 1 / _SHIFTS, xtol=1e-9)).item()
        y = of_bits(less)
        if np.abs(y - actual).max() <= _SAME * np.abs(actual).max():
            constant = f"{(less + _SAME) % 1:.3f}"
            phrase = f"its exponential is bits taken for a float (Schraudolph's), 1 + f for 2^f, less {constant}"
            yield phrase, y.astype(np.float32)
            return
    powers = legendre.legvander(2 * (exponent - np.floor(exponent)) - 1, _DEGREE) * weights[..., None]
    mixed = powers if v is None else np.einsum("blhjn,bjhe->blhen", powers, v, optimize=True)
    total = powers.sum(axis=-2)
    columns = (mixed - np.asarray(actual, np.float64)[..., None] * total[..., None, :]).reshape(-1, _DEGREE + 1)
    factors = np.append(1.0, np.linalg.lstsq(columns[:, 1:], -columns[:, 0], rcond=None)[0])
    h = legendre.legval(np.linspace(-1, 1, 65), factors)
    if h.min() > 0:
        share = 100 * (np.sqrt(h.max() / h.min()) - 1)
        y = mixed @ factors / np.where(highest > 0, (total @ factors)[..., None], 1)
        phrase = f"its exponential is approximate: 2^f, 0 <= f < 1, is off by up to {share:.2g} %"
        yield phrase, y.astype(np.float32)
