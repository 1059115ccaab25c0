"""NaN, infinity and zeros by an operation's own formula: exp and squares that overflow, and what follows.

A formula that is right in real numbers may have an intermediate result beyond its type: then inf / inf and
inf - inf are NaN. Each formula is computed here as an engine might, in float32 and in float16.
"""

from collections.abc import Callable, Iterator

import numpy as np

from refsd.causes.operation.row_sums import norm_rows, whole_attention
from refsd.causes.operation.steps import affine
from refsd.golden.operation import Inputs, Operation, Params

_NORMS = frozenset({"layer_norm", "group_norm", "group_norm_silu", "adaptive_layer_norm"})
_SUMS_OF_SQUARES = _NORMS | {"rms_norm", "l2_norm"}


def overflows(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, answer) of each formula of the operation that overflows in this case.

    params: complete; actual: the engine's answer. Where it is finite, only sums may have overflowed: x / inf is 0.
    """
    finite = bool(np.isfinite(actual).all())
    values = {name: tensor.values().astype(np.float32) for name, tensor in inputs.items()}
    sums = op.name in _SUMS_OF_SQUARES or op.name in ("softmax", "attention")
    for phrase, formula in _FORMULAS.items() if "sinks" not in values and (sums or not finite) else ():
        for kind in (_Type(np.float32, np.float32), _Type(np.float16, np.float32), _Type(np.float16, np.float16)):
            with np.errstate(all="ignore"):
                y = formula(op.name, values, params, kind)
            if y is not None and (kind.overflowed if sums else not np.isfinite(y).all()):
                yield phrase.format(np.dtype(kind.numbers).name), np.asarray(y, np.float32)


class _Type:
    """The types of a formula's intermediate results, and of its sums. overflowed: whether a sum has"""

    def __init__(self, numbers: type, sums: type):
        self.numbers, self.sums, self.overflowed = numbers, sums, False

    def total(self, y: np.ndarray) -> np.ndarray:
        total = y.sum(axis=-1, keepdims=True, dtype=self.sums)
        self.overflowed |= not np.isfinite(total).all()
        return total


def _exponentials(name: str, values: dict, params: Params, kind: _Type) -> np.ndarray | None:
    """exp(x) / sum exp(x), and functions by exp(x) where exp(-x) would not overflow."""

    def sigmoid(x: np.ndarray) -> np.ndarray:
        e = np.exp(x.astype(kind.numbers))
        return (e / (1 + e)).astype(np.float32)

    def softmax(scores: np.ndarray) -> np.ndarray:
        e = np.exp(scores.astype(kind.numbers))
        return (e / kind.total(e)).astype(np.float32)

    if name == "attention":
        heads = whole_attention(values, params)
        scores = np.float32(heads["scale"]) * np.einsum("blhd,bjhd->bhlj", values["q"], heads["k"]) + heads["mask"]
        return np.einsum("bhlj,bjhe->blhe", softmax(scores.astype(np.float32)), heads["v"])
    if name == "softmax":
        return softmax(values["x"] * np.float32(params["scale"]) + values.get("mask", np.float32(0)))
    of = _BY_EXP.get(name)
    return None if of is None else of(values["x"], sigmoid)


_Function = Callable[[np.ndarray, Callable[[np.ndarray], np.ndarray]], np.ndarray]
_BY_EXP: dict[str, _Function] = {
    "sigmoid": lambda x, sigmoid: sigmoid(x),
    "tanh": lambda x, sigmoid: 2 * sigmoid(2 * x) - 1,
    "silu": lambda x, sigmoid: x * sigmoid(x),
    "quick_gelu": lambda x, sigmoid: x * sigmoid(1.702 * x),
    "gelu_tanh": lambda x, sigmoid: (
        x * sigmoid(2 * np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3))
    ),
}


def _squares(name: str, values: dict, params: Params, kind: _Type, once: bool = False) -> np.ndarray | None:
    """Squares in the type; the deviation of a row with an overflow is infinite, and x / inf is 0."""
    if name not in (_NORMS if once else _SUMS_OF_SQUARES):
        return None
    x, eps = values["x"], kind.sums(params["eps"])
    rows = norm_rows(name, x, params).astype(kind.numbers)
    n = kind.sums(rows.shape[-1])
    mean = kind.total(rows) / n if name in _NORMS else kind.numbers(0)
    centred = rows - mean
    if name == "l2_norm":
        return (centred / np.maximum(np.sqrt(kind.total(centred * centred)), eps)).reshape(x.shape)
    square = kind.total(rows * rows) / n - mean * mean if once else kind.total(centred * centred) / n
    y = (centred / np.sqrt(square + eps)).astype(np.float32)
    return affine(name, y.reshape(x.shape), values)


_FORMULAS: dict[str, Callable[[str, dict, Params, _Type], np.ndarray | None]] = {
    "exp overflows {}: what is divided by its sum is inf / inf": _exponentials,
    "squares overflow {}": _squares,
    "squares overflow {}: inf - inf in the variance, in one pass": lambda *a: _squares(*a, once=True),
}
