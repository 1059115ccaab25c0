"""Products and convolutions by MLX, whose pictures and filters have their channels last."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.golden.case import Case


def channels_last(x):
    """[N, C, ...] -> [N, ..., C]"""
    return x.transpose(0, *range(2, x.ndim), 1)


def channels_first(x):
    """[N, ..., C] -> [N, C, ...]"""
    return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


def _each(number, axes: int) -> list[int]:
    return [number] * axes if isinstance(number, int) else list(number)


def convolve(mlx, x, weight, stride, padding, dilation=1, groups=1):
    axes = x.ndim - 2
    y = mlx.core.conv_general(
        channels_last(x),
        channels_last(weight),
        stride=_each(stride, axes),
        padding=(list(padding[0::2]), list(padding[1::2])),
        kernel_dilation=_each(dilation, axes),
        groups=groups,
    )
    return channels_first(y)


def _convolution(mlx, x, params):
    y = convolve(mlx, x["x"], x["weight"], *(params[name] for name in ("stride", "padding", "dilation", "groups")))
    return y + x["bias"].reshape(-1, *(1,) * (y.ndim - 2)) if "bias" in x else y


def _linear(mlx, x, params):
    """As mlx.nn.Linear has it."""
    if "bias" in x:
        return mlx.core.addmm(x["bias"], x["x"], x["weight"].T)
    return x["x"] @ x["weight"].T


FUNCTIONS: dict[str, Function] = {
    "linear": _linear,
    "conv2d": _convolution,
    "conv3d": _convolution,
}


def _no_groups(case: Case) -> str | None:
    return "mlx.core.conv_general has no groups in 3D" if case.params.get("groups", 1) > 1 else None


REFUSALS: dict[str, Refusal] = {"conv3d": _no_groups}
