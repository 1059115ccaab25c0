"""What computes each recognised operation: a node's arrays and parameters, by the methods of Arithmetic.

Arrays are laid out as ONNX has them, with heads before tokens; Arithmetic has tokens first.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refsd.adoption.rotations import turned
from refsd.numerics.arithmetic import Arithmetic

Array = np.ndarray
# (arithmetic, parameters, *arrays) -> result
Compute = Callable[..., Array]


def _linear(a: Arithmetic, p: Mapping[str, Any], x: Array, weight: Array, bias: Array | None = None) -> Array:
    weight = np.ascontiguousarray(weight.T) if p.get("transposed") else weight
    return a.linear(np.ascontiguousarray(x), weight, bias)


def _conv(a: Arithmetic, p: Mapping[str, Any], x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Of one, two or three axes; ONNX has the padding before each axis first, then that behind each."""
    axes: int = x.ndim - 2
    bias = np.zeros(len(weight), weight.dtype) if bias is None else bias
    pads = p["pads"]
    if axes == 1:
        flat = {name: [1, *p[name]] for name in ("stride", "dilation")} | {"pads": [0, pads[0], 0, pads[1]]}
        return _conv(a, {**p, **flat}, x[:, :, None], weight[:, :, None], bias)[:, :, 0]
    sides = tuple(pads[i + end] for i in range(axes) for end in (0, axes))
    convolve: Any = a.conv2d if axes == 2 else a.conv3d
    return convolve(x, weight, bias, tuple(p["stride"]), sides, tuple(p["dilation"]), p["groups"])


def _group_norm(a: Arithmetic, p: Mapping[str, Any], x: Array, weight: Array, bias: Array) -> Array:
    picture = np.ascontiguousarray(x).reshape(*x.shape[:2], -1, x.shape[-1] if x.ndim > 2 else 1)
    return a.group_norm(picture, weight, bias, p["num_groups"], p["eps"]).reshape(x.shape)


def _layer_norm(
    a: Arithmetic, p: Mapping[str, Any], x: Array, weight: Array | None = None, bias: Array | None = None
) -> Array:
    return a.layer_norm(np.ascontiguousarray(x), weight, bias, p["eps"])


def _rms_norm(a: Arithmetic, p: Mapping[str, Any], x: Array, weight: Array | None = None) -> Array:
    norm = a.rms_norm_apart if p.get("apart") and weight is not None else a.rms_norm
    return norm(np.ascontiguousarray(x), weight, p["eps"])


def _attention(
    a: Arithmetic, p: Mapping[str, Any], q: Array, k: Array, v: Array, mask: Array | None = None
) -> Array:
    """q, k, v: [B, heads, tokens, channels]. A boolean mask says which keys are seen."""
    q, k, v = (np.ascontiguousarray(t.swapaxes(1, 2)) for t in (q, k, v))
    if mask is not None and mask.dtype.kind == "b":
        mask = np.where(mask, 0.0, -np.inf).astype(a.numerics.compute_dtype)
    y = a.attention(q, k, v, p.get("scale"), mask, 0 if p.get("causal") else None)
    return y.swapaxes(1, 2)


def _plain(method: str) -> Compute:
    def compute(a: Arithmetic, p: Mapping[str, Any], *arrays: Array) -> Array:
        return getattr(a, method)(*(np.ascontiguousarray(x) for x in arrays))

    return compute


OPERATIONS: dict[str, Compute] = {
    "linear": _linear,
    "conv": _conv,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "attention": _attention,
    "rope": turned,
    "embedding": lambda a, p, weight, ids: a.embedding(ids, weight),
    "gelu": lambda a, p, x: a.gelu(np.ascontiguousarray(x), p["approximate"]),
    "negate": lambda a, p, x: a.multiply(np.ascontiguousarray(x), np.array(-1.0, x.dtype)),
    "subtract": lambda a, p, x, y: a.add(np.ascontiguousarray(x), -y),
    **{name: _plain(name) for name in ("silu", "quick_gelu", "add", "multiply")},
}
