"""Resampling by torch."""

from refsd.golden.engines.torch_ops.function import Function


def _upsample_nearest(torch, x, params):
    return torch.nn.functional.interpolate(x["x"], scale_factor=float(params["factor"]), mode="nearest")


FUNCTIONS: dict[str, Function] = {
    "upsample_nearest": _upsample_nearest,
}
