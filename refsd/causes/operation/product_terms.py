"""Find how often each term of a sum counts in an answer: y = sum_k c_k x_k w_k, with all c_k solved for at once.

In the right sum every c_k is 1. A tail that is not read has 0, a block that is summed again 2, a lost sign -1.
"""

from collections.abc import Iterator

import numpy as np

from refsd.causes.generic.error_places import index_set
from refsd.causes.generic.solved_numbers import shown
from refsd.golden.operation import Inputs, Operation, Params

_MOST = 1 << 24
_TERMS = 1024
_NEAR = 1e-3
_LISTED = 2


def product_terms(
    op: Operation, inputs: Inputs, params: Params, found: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if the answer is the right product with some terms counted otherwise."""
    if op.name not in ("linear", "conv2d") or params.get("groups", 1) != 1 or not np.isfinite(found).all():
        return
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    x, weight, bias = values["x"], values["weight"], values.get("bias", np.zeros(1))
    axes = ("input",) if op.name == "linear" else ("channel", "filter row", "filter column")
    if op.name == "conv2d":
        x, found = _windows(x, weight.shape, params), np.moveaxis(found, 1, -1)
    x = x.reshape(*found.shape[:-1], -1)
    rows, filters = x.reshape(-1, x.shape[-1]), weight.reshape(len(weight), -1)
    O, K = filters.shape
    if K > _TERMS or rows.shape[1] != K or len(rows) * O < 2 * K or len(rows) * K * O > _MOST * 8:
        return
    y = (found - bias).reshape(-1, O)
    square = (rows.T @ rows) * (filters.T @ filters)
    unit = 1 / np.sqrt(np.maximum(np.diag(square), np.finfo(float).tiny))
    along = ((rows.T @ y) * filters.T).sum(axis=1)
    counts = unit * np.linalg.lstsq(square * unit[:, None] * unit, along * unit, rcond=1e-12)[0]
    counts = np.where(np.abs(counts - np.rint(counts)) < _NEAR, np.rint(counts), np.round(counts, 3))
    wrong = ((rows * counts) @ filters.T).reshape(found.shape) + bias
    phrase = _told(counts.reshape(weight.shape[1:]), axes)
    if phrase:
        yield phrase, (np.moveaxis(wrong, -1, 1) if op.name == "conv2d" else wrong).astype(np.float32)


def _windows(x: np.ndarray, weight: tuple[int, ...], params: Params) -> np.ndarray:
    """Return what each output pixel sees. x: [N, C, H, W] -> [N, P, Q, C, R, S]"""
    top, bottom, left, right = params["padding"]
    (down, across), (r, s) = (np.broadcast_to(params[name], 2) for name in ("stride", "dilation"))
    wide = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    spans = (weight[2] - 1) * r + 1, (weight[3] - 1) * s + 1
    seen = np.lib.stride_tricks.sliding_window_view(wide, spans, (2, 3))
    return seen[:, :, ::down, ::across, ::r, ::s].transpose(0, 2, 3, 1, 4, 5)


def _told(counts: np.ndarray, axes: tuple[str, ...]) -> str:
    """Say which terms count how often, along the single axis on which that depends; "" if it is no such rule."""
    for axis, name in enumerate(axes):
        line = np.moveaxis(counts, axis, 0).reshape(counts.shape[axis], -1)
        kinds = [kind for kind in np.unique(line[:, 0]) if kind != 1]
        if np.abs(line - line[:, :1]).max() > _NEAR or not 0 < len(kinds) <= _LISTED:
            continue
        sets = [(kind, index_set(np.flatnonzero(line[:, 0] == kind), len(line), f"the {name}s")) for kind in kinds]
        if all(where for _, where in sets):
            return " and ".join(f"{where} {_times(kind)}" for kind, where in sets)
    return ""


def _times(count: float) -> str:
    if count == 0:
        return "are not summed"
    return {2: "are summed twice", -1: "are subtracted"}.get(
        int(count) if count % 1 == 0 else 0, f"count {shown(count)} times"
    )
