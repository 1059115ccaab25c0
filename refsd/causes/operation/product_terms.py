"""Find how often each term of a sum counts in an answer: y = sum_k c_k x_k w_k, with all c_k solved for at once.

In the right sum every c_k is 1. A tail that is not read has 0, a block that is summed again 2, a lost sign -1.
"""

from collections.abc import Iterator
from itertools import chain, product

import numpy as np

from refsd.causes.generic.error_places import index_set
from refsd.causes.generic.solved_numbers import shown
from refsd.golden.cause_kinds import BLOCKS
from refsd.golden.operation import Inputs, Operation, Params

_MOST = 1 << 27
_TERMS = 4096
_NEAR = 1e-3
_LISTED = 2
# Terms that a sum may have too many: a block of a product.
_BEYOND = 64
# Elements that must fit before all are computed.
_SAMPLE = 256


def product_terms(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if the answer is the right product with terms counted otherwise, or with more.

    A 1x1 convolution is the product of its pixels.
    """
    if op.name not in ("linear", "conv2d") or not np.isfinite(actual).all():
        return
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    pixels = op.name == "conv2d" and values["weight"].shape[2:] == (1, 1) and params["groups"] == 1
    if op.name == "conv2d" and not (pixels and actual.shape[2:] == values["x"].shape[2:]):
        return
    x, actual = (np.moveaxis(t, 1, -1) if pixels else t for t in (values["x"], actual))
    weight, bias = values["weight"].reshape(len(values["weight"]), -1), values.get("bias", np.zeros(1))
    rows, (O, K) = x.reshape(-1, x.shape[-1]), weight.shape
    if K > _TERMS or len(rows) * K * O > _MOST:
        return
    y = (actual - bias).reshape(-1, O)
    for phrase, wrong in chain(_counted(rows, weight, y), _read_on(rows, weight, y), _whole_tile(rows, weight, y)):
        answer = (wrong.reshape(actual.shape) + bias).astype(np.float32)
        yield phrase, np.moveaxis(answer, -1, 1) if pixels else answer


def _counted(rows: np.ndarray, weight: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Solve for each term's count; where there are too few sums for that, for that of each block of terms.

    Blocks are read on behind the ends of both rows, where each counts 0 times in the right sum.
    """
    K = rows.shape[1]
    for block in (1, 16, 32) if y.size >= 2 * K else (16, 32):
        n = K // block
        if K % block or y.size < 2 * n or n < 2:
            continue
        x, w = (np.concatenate([t, _behind(t)[:, :block]], axis=1) if block > 1 else t for t in (rows, weight))
        x, w = (t.reshape(len(t), -1, block) for t in (x, w))
        square = np.einsum("mni,mkj->nikj", x, x) * np.einsum("oni,okj->nikj", w, w)
        square, along = square.sum(axis=(1, 3)), np.einsum("mni,mo,oni->n", x, y, w, optimize=True)
        unit = 1 / np.sqrt(np.maximum(np.diag(square), np.finfo(float).tiny))
        counts = unit * np.linalg.lstsq(square * unit[:, None] * unit, along * unit, rcond=1e-12)[0]
        counts = np.where(np.abs(counts - np.rint(counts)) < _NEAR, np.rint(counts), np.round(counts, 3))
        phrase, more = told_counts(np.repeat(counts[:n], block)), counts[n:].any()
        if phrase:
            words = f", and {block} terms behind the ends of the rows {_times(counts[n])}" if more else ""
            yield phrase + words, np.einsum("mni,n,oni->mo", x, counts, w, optimize=True)


def _behind(t: np.ndarray) -> np.ndarray:
    """Return what lies in memory behind each row; behind the last lie zeros."""
    return np.pad(t.ravel()[t.shape[1] :], (0, t.shape[1])).reshape(t.shape)


def _read_on(rows: np.ndarray, weight: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Sums that go on behind the ends of both rows, into the next; those of the last rows, into what is unknown."""
    limit, most = _NEAR * np.abs(y).max(), min(rows.shape[1], _BEYOND)
    known = y[:-1, :-1]
    if known.size <= max(y.size // 2, _BEYOND):
        return
    behind = [_behind(t)[:, :most] for t in (rows, weight)]
    some = np.unravel_index(np.linspace(0, known.size - 1, min(known.size, _SAMPLE)).astype(int), known.shape)
    right = np.einsum("sk,sk->s", rows[some[0]], weight[some[1]])
    sums = right[:, None] + np.cumsum(behind[0][some[0]] * behind[1][some[1]], axis=1)
    for m in np.flatnonzero(np.abs(y[some][:, None] - sums).max(axis=0) <= limit).tolist():
        wrong = rows @ weight.T + behind[0][:, : m + 1] @ behind[1][:, : m + 1].T
        wrong[-1], wrong[:, -1] = y[-1], y[:, -1]
        if np.abs(y - wrong).max() <= limit:
            more = "1 term" if m == 0 else f"{m + 1} terms"
            yield f"sums of {rows.shape[1]} terms go on for {more} more, behind the ends of the rows", wrong
            return


def _whole_tile(rows: np.ndarray, weight: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Sums whose last tile is whole: one factor goes on behind its row, the other's tile has what it had."""
    (M, K), names = rows.shape, ("inputs", "weight")
    for block, own in product((b for b in BLOCKS if b < K and K % b), (0, 1) if M > 1 else ()):
        more = [t[:, K - block : K - K % block] for t in (rows, weight)]
        more[own] = _behind((rows, weight)[own])[:, : block - K % block]
        wrong, last = rows @ weight.T + more[0] @ more[1].T, np.s_[:, -1] if own else -1
        wrong[last] = y[last]  # what lies behind all rows is unknown
        if np.abs(y - wrong).max() <= _NEAR * np.abs(y).max():
            words = f"behind the {names[own]} lies the next row, the {names[1 - own]}'s has what was in it before"
            yield f"the last tile of {block} terms is whole: {words}", wrong


def told_counts(counts: np.ndarray, of: str = "the inputs") -> str:
    """Say which terms count how often; "" if all count once, or in more ways than few."""
    kinds = [kind for kind in np.unique(counts) if kind != 1 and (counts != kind).any()]
    sets = [(kind, index_set(np.flatnonzero(counts == kind), len(counts), of)) for kind in kinds[:_LISTED]]
    told = 0 < len(kinds) <= _LISTED and all(where for _, where in sets)
    return " and ".join(f"{where} {_times(kind)}" for kind, where in sets) if told else ""


def _times(count: float) -> str:
    if count == 0:
        return "are not summed"
    return {1: "are summed", 2: "are summed twice", -1: "are subtracted"}.get(
        int(count) if count % 1 == 0 else 0, f"count {shown(count)} times"
    )
