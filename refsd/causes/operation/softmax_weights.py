"""Find with what weights keys count in an attention's sums: not at all, or twice."""

from collections.abc import Iterator

import numpy as np

from refsd.causes.generic.error_places import index_set
from refsd.causes.operation.product_terms import told_counts
from refsd.causes.operation.row_sums import attention_weights
from refsd.golden.operation import Inputs, Operation, Params

# The most keys whose counts are solved for, and how near to whole numbers they must be.
_MOST_KEYS, _ROUND = 1152, 0.01
_MOST_OFTEN = 16


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
