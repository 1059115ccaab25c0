"""The operations that a case may ask for: tensors and parameters in, named tensors out.

One line an operation: it looks up its arguments and hands them to Arithmetic, which rounds as the
numerics say. The reference answers a case with `run`; an engine's adapter reads the same table to
learn the arguments, their shapes and what must come back.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.errors import BadInput
from refsd.golden.tensor import StoredTensor
from refsd.kernels.attention import causal_mask

Inputs = Mapping[str, StoredTensor]
Params = Mapping[str, Any]


class Operation(NamedTuple):
    """
    run:      the reference
    what:     one sentence
    inputs:   argument -> shape; a name that ends in "?" may be absent
    params:   parameter -> its default; REQUIRED where there is none
    output:   the shape of "y"
    channel:  the axis of "y" along which an error is reported as a channel
    """

    run: Callable[[Arithmetic, Inputs, Params], dict[str, np.ndarray]]
    what: str
    inputs: Mapping[str, str]
    params: Mapping[str, Any]
    output: str
    channel: int = -1


REQUIRED = object()


def _values(a: Arithmetic, tensor: StoredTensor) -> np.ndarray:
    return a.store(tensor.values())


def _optional(a: Arithmetic, inputs: Inputs, name: str) -> np.ndarray | None:
    return a.expand(inputs[name]) if name in inputs else None


def _linear(a, inputs, params):
    weight = inputs["weight"]
    return a.linear(_values(a, inputs["x"]), a.expand(weight), _optional(a, inputs, "bias"), weight.type)


def _conv2d(a, inputs, params):
    weight = a.expand(inputs["weight"])
    bias = a.expand(inputs["bias"]) if "bias" in inputs else np.zeros(weight.shape[0], weight.dtype)
    return a.conv2d(_values(a, inputs["x"]), weight, bias, params["stride"], tuple(params["padding"]))


def _im2col(a, inputs, params):
    x = a.round_as(_values(a, inputs["x"]), a.numerics.conv)
    N, C, _, _ = x.shape
    top, bottom, left, right = params["padding"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    R, S = params["kernel"]
    step = params["stride"]
    patches = sliding_window_view(padded, (R, S), axis=(2, 3))[:, :, ::step, ::step]
    return patches.transpose(0, 1, 4, 5, 2, 3).reshape(N, C * R * S, -1)


def _group_norm(a, inputs, params):
    weight, bias = a.expand(inputs["weight"]), a.expand(inputs["bias"])
    return a.group_norm(_values(a, inputs["x"]), weight, bias, params["num_groups"], params["eps"])


def _layer_norm(a, inputs, params):
    weight, bias = _optional(a, inputs, "weight"), _optional(a, inputs, "bias")
    return a.layer_norm(_values(a, inputs["x"]), weight, bias, params["eps"])


def _rms_norm(a, inputs, params):
    return a.rms_norm(_values(a, inputs["x"]), a.expand(inputs["weight"]), params["eps"])


def _silu(a, inputs, params):
    return a.silu(_values(a, inputs["x"]))


def _gelu(a, inputs, params):
    return a.gelu(_values(a, inputs["x"]))


def _gelu_tanh(a, inputs, params):
    return a.gelu(_values(a, inputs["x"]), "tanh")


def _quick_gelu(a, inputs, params):
    return a.quick_gelu(_values(a, inputs["x"]))


def _geglu(a, inputs, params):
    value, gate = np.split(_values(a, inputs["x"]), 2, axis=-1)
    return value * a.gelu(gate)


def _softmax(a, inputs, params):
    mask = _values(a, inputs["mask"]) if "mask" in inputs else None
    return a.softmax(_values(a, inputs["x"]), params["scale"], mask)


def _attention(a, inputs, params):
    q, k, v = (_values(a, inputs[name]) for name in ("q", "k", "v"))
    mask = inputs["mask"].values().astype(a.numerics.compute_dtype) if "mask" in inputs else None
    if params["causal"]:
        mask = causal_mask(q.shape[1], a.numerics.compute_dtype)
    return a.attention(q, k, v, params["scale"], mask)


def _timestep_embedding(a, inputs, params):
    return a.timestep_embedding(_values(a, inputs["t"]), params["dim"], params["max_period"])


def _upsample_nearest(a, inputs, params):
    return a.upsample_nearest(_values(a, inputs["x"]), params["factor"])


def _embedding(a, inputs, params):
    return a.embedding(inputs["ids"].values(), a.expand(inputs["weight"]))


def _dequantize(a, inputs, params):
    return _values(a, inputs["x"])


def _entry(run, what, inputs, output, channel=-1, **params) -> Operation:
    return Operation(lambda a, i, p: {"y": run(a, i, p)}, what, inputs, params, output, channel)


_IMAGE = "[N, C, H, W]"
_ROWS = "[..., D]"

OPERATIONS: dict[str, Operation] = {
    "linear": _entry(
        _linear,
        "Multiply by a matrix of any storage type, add a bias.",
        {"x": "[..., K]", "weight": "[O, K]", "bias?": "[O]"},
        "[..., O]",
    ),
    "conv2d": _entry(
        _conv2d,
        "Cross-correlate an image with filters; padding is (top, bottom, left, right).",
        {"x": _IMAGE, "weight": "[K, C, R, S]", "bias?": "[K]"},
        "[N, K, P, Q]",
        channel=1,
        stride=1,
        padding=(0, 0, 0, 0),
    ),
    "im2col": _entry(
        _im2col,
        "Copy each filter position's patch into a column; kernel is (R, S).",
        {"x": _IMAGE},
        "[N, C*R*S, P*Q]",
        channel=1,
        kernel=REQUIRED,
        stride=1,
        padding=(0, 0, 0, 0),
    ),
    "group_norm": _entry(
        _group_norm,
        "Normalise each group of channels, scale and shift each channel.",
        {"x": _IMAGE, "weight": "[C]", "bias": "[C]"},
        _IMAGE,
        channel=1,
        num_groups=32,
        eps=1e-5,
    ),
    "layer_norm": _entry(
        _layer_norm,
        "Normalise each row to zero mean and unit variance.",
        {"x": _ROWS, "weight?": "[D]", "bias?": "[D]"},
        _ROWS,
        eps=1e-5,
    ),
    "rms_norm": _entry(
        _rms_norm,
        "Scale each row to unit mean square.",
        {"x": _ROWS, "weight": "[D]"},
        _ROWS,
        eps=1e-6,
    ),
    "silu": _entry(_silu, "x * sigmoid(x)", {"x": "[...]"}, "[...]"),
    "gelu": _entry(_gelu, "x * Phi(x), Phi by erf", {"x": "[...]"}, "[...]"),
    "gelu_tanh": _entry(_gelu_tanh, "GELU by its tanh approximation", {"x": "[...]"}, "[...]"),
    "quick_gelu": _entry(_quick_gelu, "x * sigmoid(1.702 x)", {"x": "[...]"}, "[...]"),
    "geglu": _entry(
        _geglu,
        "The first half of the last axis times GELU (erf) of the second half.",
        {"x": "[..., 2*D]"},
        _ROWS,
    ),
    "softmax": _entry(
        _softmax,
        "Softmax over the last axis of scale * x + mask; -inf masks.",
        {"x": "[..., L]", "mask?": "broadcastable to x"},
        "[..., L]",
        scale=1.0,
    ),
    "attention": _entry(
        _attention,
        "softmax(scale q.k + mask) v; scale None is 1/sqrt(D); causal hides j > l.",
        {"q": "[B, L, H, D]", "k": "[B, J, H, D]", "v": "[B, J, H, D]", "mask?": "broadcastable to [B, H, L, J]"},
        "[B, L, H, D]",
        scale=None,
        causal=False,
    ),
    "timestep_embedding": _entry(
        _timestep_embedding,
        "Cosines, then sines, of t at geometrically spaced frequencies; a zero at the end if dim is odd.",
        {"t": "[N]"},
        "[N, dim]",
        dim=REQUIRED,
        max_period=10000.0,
    ),
    "upsample_nearest": _entry(
        _upsample_nearest,
        "Repeat each pixel `factor` times in both directions.",
        {"x": _IMAGE},
        "[N, C, H*factor, W*factor]",
        channel=1,
        factor=2,
    ),
    "embedding": _entry(
        _embedding,
        "Take a row of the table (of any storage type) for each id.",
        {"ids": "[...]", "weight": "[V, D]"},
        "[..., D]",
    ),
    "dequantize": _entry(_dequantize, "Expand a block type to float32.", {"x": "[..., D]"}, "[..., D]"),
}


def complete(op: str, inputs: Inputs, params: Params) -> dict[str, Any]:
    """The parameters with their defaults filled in.

    Raises BadInput for an unknown operation, a missing or unknown argument or parameter.
    """
    if op not in OPERATIONS:
        raise BadInput(f"unknown operation {op!r}: expected one of {', '.join(OPERATIONS)}")
    entry = OPERATIONS[op]
    required = {name for name in entry.inputs if not name.endswith("?")}
    known = {name.rstrip("?") for name in entry.inputs}
    if required - inputs.keys() or inputs.keys() - known:
        raise BadInput(f"{op}: inputs {sorted(inputs)}, expected {', '.join(entry.inputs)}")
    if params.keys() - entry.params.keys():
        raise BadInput(f"{op}: params {sorted(params)}, expected some of {', '.join(entry.params) or 'none'}")
    full = {**entry.params, **params}
    missing = [name for name, value in full.items() if value is REQUIRED]
    if missing:
        raise BadInput(f"{op}: missing params {', '.join(missing)}")
    return full


def run(op: str, arithmetic: Arithmetic, inputs: Inputs, params: Params) -> dict[str, np.ndarray]:
    """Answer one operation under the arithmetic's numerics. Raises BadInput, see `complete`."""
    return OPERATIONS[op].run(arithmetic, inputs, complete(op, inputs, params))
