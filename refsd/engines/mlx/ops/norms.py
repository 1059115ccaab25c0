"""Normalisations by mlx.core.fast and mlx.nn."""

from refsd.engines.arrays.composed import modulated
from refsd.engines.arrays.function import Function
from refsd.engines.mlx.ops.convolution import channels_first, channels_last


def _group_norm(mlx, x, params):
    C = x["x"].shape[1]
    norm = mlx.nn.GroupNorm(params["num_groups"], C, params["eps"], pytorch_compatible=True)
    norm.weight, norm.bias = x["weight"], x["bias"]
    return channels_first(norm(channels_last(x["x"])))


def _layer_norm(mlx, x, params):
    return mlx.core.fast.layer_norm(x["x"], x.get("weight"), x.get("bias"), params["eps"])


def _rms_norm(mlx, x, params):
    return mlx.core.fast.rms_norm(x["x"], x.get("weight"), params["eps"])


def _l2_norm(mlx, x, params):
    length = mlx.core.linalg.norm(x["x"], axis=-1, keepdims=True)
    return x["x"] / mlx.core.maximum(length, params["eps"])


def _batch_norm(mlx, x, params):
    """As mlx.nn.BatchNorm computes in evaluation mode."""
    mean, var = (x[name][:, None, None] for name in ("mean", "var"))
    return (x["x"] - mean) * mlx.core.rsqrt(var + params["eps"])


def _adaptive_layer_norm(mlx, x, params):
    return modulated(mlx.core.fast.layer_norm(x["x"], None, None, params["eps"]), x)


FUNCTIONS: dict[str, Function] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "l2_norm": _l2_norm,
    "batch_norm": _batch_norm,
    "group_norm_silu": lambda mlx, x, params: mlx.nn.silu(_group_norm(mlx, x, params)),
    "adaptive_layer_norm": _adaptive_layer_norm,
}
