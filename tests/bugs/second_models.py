"""A second fresh set, of blocks and models: drawn from public trackers on 2026-11-23."""

import numpy as np
from held_out import HeldOut
from injected_models import _half, _model, _patch, _without
from injection import Bug, Injection, wrong_operation

from refsd.models import flux
from refsd.numerics.tensor import stored


def _grouped_by_head(weights):
    """A fused qkv whose file lists q, k and v of head 0, then of head 1: its rows are taken as q, k, v."""
    own = dict(weights)
    for name in weights:
        if ".qkv." in name:
            values = weights[name].values()
            heads = len(values) // (3 * 128)
            rows = values.reshape(3, heads, 128, -1).swapaxes(0, 1).reshape(values.shape)
            own[name] = stored(np.ascontiguousarray(rows))
    return own


def _norms_one_higher(weights):
    """The weights of RMSNorms are stored whole; the converter adds 1, as to those that are stored as w - 1."""
    return {
        **weights,
        **{
            name: stored(weights[name].values() + np.float32(1))
            for name in weights
            if name.endswith(("layernorm.weight", "norm.weight"))
        },
    }


_ANGLES = flux.angles


def _rows_forgotten(m, J, ids, axes_dim):
    """The row of every token of the picture is 0."""
    return _ANGLES(m, J, np.asarray(ids) * [1, 0, 1], axes_dim)


def _product_in_half(a, right, x, *rest, **named):
    """silu(gate) value in float16, which ends at 65504."""
    gate, value = np.split(np.asarray(x), 2, axis=-1)
    with np.errstate(over="ignore"):
        return _half(_half(gate / (1 + np.exp(-gate))) * _half(value))


def _over_heads(a, right, x, weight, eps=1e-6):
    """Queries and keys are normalised over all heads together."""
    x = np.asarray(x, np.float64)
    if x.ndim != 4:
        return right(x.astype(np.float32), weight, eps)
    return x / np.sqrt((x**2).mean((-2, -1), keepdims=True) + eps) * weight


def _from_the_beginning(method):
    """A slice is normalised as if it began where the whole tensor begins."""

    def norm(a, right, x, *rest, **named):
        base = x.base if isinstance(x, np.ndarray) else None
        if base is not None and x.ctypes.data > base.ctypes.data:
            x = np.lib.stride_tricks.as_strided(base, x.shape, x.strides)
        return right(x, *rest, **named)

    return {method: norm}


_TABLE: dict[str, tuple[str, str, Injection]] = {
    "s-mod-01": (
        "block",
        "sgl-project/sglang#40127",
        _model(
            Bug(weights=_grouped_by_head),
            "qkv",
            "head|order of rows|permut|rows|chunks of 128 in the order",
            "flux-dev/flux/between",
            "flux-dev/flux/quiet",
        ),
    ),
    "s-mod-02": (
        "model",
        "ml-explore/mlx-lm#1623",
        _model(
            Bug(weights=_norms_one_higher), "norm", r"1 \+|\+ 1|1 is added|weight.*\b1\b", "qwen3-4b/qwen3/whole"
        ),
    ),
    "s-mod-03": (
        "model",
        "vllm-project/vllm#29425",
        _model(
            Bug(patched=_patch(flux, "angles", _rows_forgotten)),
            "rope|angle|attn",
            "axis|axes|row|height|position",
            "flux-dev/flux/between",
            "flux-dev/flux/quiet",
        ),
    ),
    "s-mod-04": (
        "block",
        "openvinotoolkit/openvino#33491",
        _model(
            wrong_operation(swiglu=_product_in_half), "swiglu|feed_forward", "float16|f16|65504", "zimage/zimage/*"
        ),
    ),
    "s-mod-05": (
        "block",
        "vllm-project/vllm#16311",
        _model(
            wrong_operation(rms_norm=_over_heads),
            "query_norm|rms_norm",
            "head",
            "flux-dev/flux/between",
            "flux-dev/flux/quiet",
        ),
    ),
    "s-mod-06": (
        "model",
        "huggingface/diffusers#14194",
        _model(
            Bug(inputs=_without("positions")),
            "rope|angle|attn|attention",
            "position|each token's number",
            "qwen2.5-vl-7b/qwen2_5_vl/image",
        ),
    ),
    "s-mod-07": (
        "block",
        "pytorch/pytorch#131750",
        _model(
            wrong_operation(**_from_the_beginning("layer_norm")),
            "final_layer|layer_norm",
            "slice|begin|offset|text|tokens|shift|memory|moved",
            "flux-dev/flux/between",
            "flux-dev/flux/quiet",
        ),
    ),
}
SECOND_MODELS = {id: HeldOut(*row) for id, row in _TABLE.items()}
