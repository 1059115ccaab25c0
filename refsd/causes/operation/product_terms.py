"""Find how often each term of a sum counts in an answer: y = sum_k c_k x_k w_k, with all c_k solved for at once.

In the right sum every c_k is 1. A tail that is not read has 0, a block that is summed again 2, a lost sign -1.
"""

from collections.abc import Iterator

import numpy as np

from refsd.causes.generic.error_places import index_set
from refsd.causes.generic.solved_numbers import shown
from refsd.golden.operation import Inputs, Operation, Params

_MOST = 1 << 27
_TERMS = 1024
_NEAR = 1e-3
_LISTED = 2


def product_terms(
    op: Operation, inputs: Inputs, params: Params, found: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if the answer is the right product with some terms counted otherwise."""
    if op.name != "linear" or not np.isfinite(found).all():
        return
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    x, weight, bias = values["x"], values["weight"], values.get("bias", np.zeros(1))
    rows, (O, K) = x.reshape(-1, x.shape[-1]), weight.shape
    if K > _TERMS or len(rows) * O < 2 * K or len(rows) * K * O > _MOST:
        return
    y = (found - bias).reshape(-1, O)
    square = (rows.T @ rows) * (weight.T @ weight)
    unit = 1 / np.sqrt(np.maximum(np.diag(square), np.finfo(float).tiny))
    along = ((rows.T @ y) * weight.T).sum(axis=1)
    counts = unit * np.linalg.lstsq(square * unit[:, None] * unit, along * unit, rcond=1e-12)[0]
    counts = np.where(np.abs(counts - np.rint(counts)) < _NEAR, np.rint(counts), np.round(counts, 3))
    wrong = ((rows * counts) @ weight.T).reshape(found.shape) + bias
    phrase = _told(counts)
    if phrase:
        yield phrase, wrong.astype(np.float32)


def _told(counts: np.ndarray) -> str:
    """Say which inputs count how often; "" if all count once, or in more ways than few."""
    kinds = [kind for kind in np.unique(counts) if kind != 1]
    sets = [
        (kind, index_set(np.flatnonzero(counts == kind), len(counts), "the inputs")) for kind in kinds[:_LISTED]
    ]
    told = 0 < len(kinds) <= _LISTED and all(where for _, where in sets)
    return " and ".join(f"{where} {_times(kind)}" for kind, where in sets) if told else ""


def _times(count: float) -> str:
    if count == 0:
        return "are not summed"
    return {2: "are summed twice", -1: "are subtracted"}.get(
        int(count) if count % 1 == 0 else 0, f"count {shown(count)} times"
    )
