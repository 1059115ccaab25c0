"""Normalisations by tinygrad.nn and Tensor.layernorm."""

from refsd.engines.arrays.composed import modulated
from refsd.engines.arrays.function import Function


def _group_norm(tinygrad, x, params):
    norm = tinygrad.nn.GroupNorm(params["num_groups"], x["x"].shape[1], params["eps"])
    norm.weight, norm.bias = x["weight"], x["bias"]
    return norm(x["x"])


def _layer_norm(tinygrad, x, params):
    y = x["x"].layernorm(eps=params["eps"])
    y = y * x["weight"] if "weight" in x else y
    return y + x["bias"] if "bias" in x else y


def _rms_norm(tinygrad, x, params):
    norm = tinygrad.nn.RMSNorm(x["x"].shape[-1], params["eps"], elementwise_affine=False)
    norm.weight = x.get("weight")
    return norm(x["x"])


def _batch_norm(tinygrad, x, params):
    return x["x"].batchnorm(None, None, x["mean"], (x["var"] + params["eps"]).rsqrt())


def _adaptive_layer_norm(tinygrad, x, params):
    return modulated(x["x"].layernorm(eps=params["eps"]), x)


FUNCTIONS: dict[str, Function] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "l2_norm": lambda tinygrad, x, params: x["x"].normalize(dim=-1, eps=params["eps"]),
    "batch_norm": _batch_norm,
    "group_norm_silu": lambda tinygrad, x, params: _group_norm(tinygrad, x, params).silu(),
    "adaptive_layer_norm": _adaptive_layer_norm,
}
