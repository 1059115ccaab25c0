"""Normalisations by torch."""

from refsd.engines.torch.ops.function import Function


def _group_norm(torch, x, params):
    return torch.nn.functional.group_norm(x["x"], params["num_groups"], x["weight"], x["bias"], params["eps"])


def _layer_norm(torch, x, params):
    width = x["x"].shape[-1:]
    return torch.nn.functional.layer_norm(x["x"], width, x.get("weight"), x.get("bias"), params["eps"])


def _rms_norm(torch, x, params):
    return torch.nn.functional.rms_norm(x["x"], x["x"].shape[-1:], x.get("weight"), params["eps"])


def _l2_norm(torch, x, params):
    return torch.nn.functional.normalize(x["x"], dim=-1, eps=params["eps"])


def _rms_norm_channels(torch, x, params):
    """In the form of diffusers' WanRMS_norm."""
    C = x["x"].shape[1]
    weight = x["weight"].reshape(-1, *[1] * (x["x"].ndim - 2))
    return torch.nn.functional.normalize(x["x"], dim=1, eps=params["eps"]) * C**0.5 * weight


def _batch_norm(torch, x, params):
    return torch.nn.functional.batch_norm(x["x"], x["mean"], x["var"], eps=params["eps"])


def _group_norm_silu(torch, x, params):
    return torch.nn.functional.silu(_group_norm(torch, x, params))


def _modulated(y, x):
    """In the form of diffusers' AdaLayerNormZero."""
    return y * (1 + x["scale"][:, None]) + x["shift"][:, None]


def _modulate(torch, x, params):
    return _modulated(x["x"], x)


def _adaptive_layer_norm(torch, x, params):
    return _modulated(torch.nn.functional.layer_norm(x["x"], x["x"].shape[-1:], eps=params["eps"]), x)


def _gated_add(torch, x, params):
    return x["x"] + x["gate"][:, None] * x["h"]


FUNCTIONS: dict[str, Function] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "l2_norm": _l2_norm,
    "rms_norm_channels": _rms_norm_channels,
    "batch_norm": _batch_norm,
    "group_norm_silu": _group_norm_silu,
    "modulate": _modulate,
    "adaptive_layer_norm": _adaptive_layer_norm,
    "gated_add": _gated_add,
}
