"""Resampling by jax.image, pooling by jax.lax.reduce_window."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.golden.case import Case


def _upsample_nearest(jax, x, params):
    N, C, H, W = x["x"].shape
    return jax.image.resize(x["x"], (N, C, H * params["factor"], W * params["factor"]), "nearest")


def _resize(method: str) -> Function:
    def resized(jax, x, params):
        """jax.image.resize antialiases by default, so the choice is given."""
        size = (*x["x"].shape[:2], params["height"], params["width"])
        return jax.image.resize(x["x"], size, method, antialias=params["antialias"])

    return resized


def _window(params):
    frame = [(pad, pad) for pad in params["padding"]]
    return (1, 1, *params["kernel_size"]), (1, 1, *params["stride"]), [(0, 0), (0, 0), *frame]


def _max_pool2d(jax, x, params):
    return jax.lax.reduce_window(x["x"], -jax.numpy.inf, jax.lax.max, *_window(params))


def _avg_pool2d(jax, x, params):
    """Count the pixels of a window as flax.linen.avg_pool does."""
    total = jax.lax.reduce_window(x["x"], 0.0, jax.lax.add, *_window(params))
    if params["count_include_pad"]:
        return total / (params["kernel_size"][0] * params["kernel_size"][1])
    return total / jax.lax.reduce_window(jax.numpy.ones_like(x["x"]), 0.0, jax.lax.add, *_window(params))


def _no_corners(case: Case) -> str | None:
    return "jax.image.resize has no align_corners" if case.params.get("align_corners") else None


def _no_cubic(case: Case) -> str | None:
    # jax/_src/image/scale.py, _keys_cubic_kernel
    other = None if case.params.get("antialias") else "jax.image.resize's cubic has a = -1/2, not -3/4"
    return _no_corners(case) or other


FUNCTIONS: dict[str, Function] = {
    "upsample_nearest": _upsample_nearest,
    "resize_bilinear": _resize("bilinear"),
    "resize_bicubic": _resize("bicubic"),
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": _max_pool2d,
}
REFUSALS: dict[str, Refusal] = {"resize_bilinear": _no_corners, "resize_bicubic": _no_cubic}
