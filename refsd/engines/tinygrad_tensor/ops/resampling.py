"""Resampling and pooling by Tensor's methods."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.golden.case import Case


def _upsample_nearest(tinygrad, x, params):
    return x["x"].interpolate(tuple(n * params["factor"] for n in x["x"].shape[2:]), "nearest")


def _resize_nearest(tinygrad, x, params):
    return x["x"].interpolate((params["height"], params["width"]), "nearest")


def _resize_bilinear(tinygrad, x, params):
    return x["x"].interpolate((params["height"], params["width"]), "linear", params["align_corners"])


def _window(params):
    """Tensor's padding, from the last axis on, before and after."""
    top, left = params["padding"]
    sides = (left, left, top, top)
    return {"kernel_size": tuple(params["kernel_size"]), "stride": tuple(params["stride"]), "padding": sides}


def _avg_pool2d(tinygrad, x, params):
    return x["x"].avg_pool2d(**_window(params), count_include_pad=params["count_include_pad"])


def _no_antialias(case: Case) -> str | None:
    return "Tensor.interpolate has no antialias" if case.params.get("antialias") else None


FUNCTIONS: dict[str, Function] = {
    "upsample_nearest": _upsample_nearest,
    "resize_nearest": _resize_nearest,
    "resize_bilinear": _resize_bilinear,
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": lambda tinygrad, x, params: x["x"].max_pool2d(**_window(params)),
}
REFUSALS: dict[str, Refusal] = {"resize_bilinear": _no_antialias}
