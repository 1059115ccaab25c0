"""Products and convolutions by jax.lax."""

from refsd.engines.arrays.function import Function

_LAYOUT = {2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}


def _each(number, axes: int) -> tuple[int, ...]:
    return (number,) * axes if isinstance(number, int) else tuple(number)


def _sides(padding) -> list[tuple[int, int]]:
    return [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]


def convolve(jax, x, weight, stride, padding, dilation=1, groups=1):
    axes = x.ndim - 2
    return jax.lax.conv_general_dilated(
        x,
        weight,
        window_strides=_each(stride, axes),
        padding=_sides(padding),
        rhs_dilation=_each(dilation, axes),
        dimension_numbers=_LAYOUT[axes],
        feature_group_count=groups,
    )


def _convolution(jax, x, params):
    y = convolve(jax, x["x"], x["weight"], *(params[name] for name in ("stride", "padding", "dilation", "groups")))
    return y + x["bias"].reshape(-1, *(1,) * (y.ndim - 2)) if "bias" in x else y


def _im2col(jax, x, params):
    y = jax.lax.conv_general_dilated_patches(
        x["x"],
        filter_shape=tuple(params["kernel"]),
        window_strides=_each(params["stride"], 2),
        padding=_sides(params["padding"]),
        rhs_dilation=_each(params["dilation"], 2),
        dimension_numbers=_LAYOUT[2],
    )
    return y.reshape(*y.shape[:2], -1)


def _linear(jax, x, params):
    y = jax.numpy.dot(x["x"], x["weight"].T)
    return y + x["bias"] if "bias" in x else y


FUNCTIONS: dict[str, Function] = {
    "linear": _linear,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "im2col": _im2col,
}
