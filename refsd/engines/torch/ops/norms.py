"""Normalisations by torch."""

from refsd.engines.torch.ops.function import Function


def _group_norm(torch, x, params):
    return torch.nn.functional.group_norm(x["x"], params["num_groups"], x["weight"], x["bias"], params["eps"])


def _layer_norm(torch, x, params):
    width = x["x"].shape[-1:]
    return torch.nn.functional.layer_norm(x["x"], width, x.get("weight"), x.get("bias"), params["eps"])


def _rms_norm(torch, x, params):
    return torch.nn.functional.rms_norm(x["x"], x["x"].shape[-1:], x.get("weight"), params["eps"])


def _rms_norm_channels(torch, x, params):
    """In the form of diffusers' WanRMS_norm."""
    C = x["x"].shape[1]
    weight = x["weight"].reshape(-1, *[1] * (x["x"].ndim - 2))
    return torch.nn.functional.normalize(x["x"], dim=1, eps=params["eps"]) * C**0.5 * weight


def _batch_norm(torch, x, params):
    return torch.nn.functional.batch_norm(x["x"], x["mean"], x["var"], eps=params["eps"])


def _modulated(y, x):
    """In the form of diffusers' AdaLayerNormZero."""
    return y * (1 + x["scale"][:, None]) + x["shift"][:, None]


def _adaptive_layer_norm(torch, x, params):
    return _modulated(torch.nn.functional.layer_norm(x["x"], x["x"].shape[-1:], eps=params["eps"]), x)


FUNCTIONS: dict[str, Function] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "l2_norm": lambda torch, x, params: torch.nn.functional.normalize(x["x"], dim=-1, eps=params["eps"]),
    "rms_norm_channels": _rms_norm_channels,
    "batch_norm": _batch_norm,
    "group_norm_silu": lambda torch, x, params: torch.nn.functional.silu(_group_norm(torch, x, params)),
    "modulate": lambda torch, x, params: _modulated(x["x"], x),
    "adaptive_layer_norm": _adaptive_layer_norm,
    "gated_add": lambda torch, x, params: x["x"] + x["gate"][:, None] * x["h"],
}
