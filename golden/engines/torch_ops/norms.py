"""Normalisations by torch."""

from refsd.golden.engines.torch_ops.function import Function


def _group_norm(torch, x, params):
    return torch.nn.functional.group_norm(x["x"], params["num_groups"], x["weight"], x["bias"], params["eps"])


def _layer_norm(torch, x, params):
    width = x["x"].shape[-1:]
    return torch.nn.functional.layer_norm(x["x"], width, x.get("weight"), x.get("bias"), params["eps"])


def _rms_norm(torch, x, params):
    return torch.nn.functional.rms_norm(x["x"], x["x"].shape[-1:], x["weight"], params["eps"])


FUNCTIONS: dict[str, Function] = {
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
