"""Products and convolutions by Tensor.linear and Tensor.conv2d, which takes any number of axes."""

from refsd.engines.arrays.function import Function


def convolve(tinygrad, x, weight, stride, padding, dilation=1, groups=1, bias=None):
    sides = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]
    # Tensor.conv2d counts from the last axis.
    last_first = [n for side in reversed(sides) for n in side]
    stride, dilation = (n if isinstance(n, int) else tuple(n) for n in (stride, dilation))
    return x.conv2d(weight, bias, groups=groups, stride=stride, dilation=dilation, padding=last_first)


def _convolution(tinygrad, x, params):
    how = {name: params[name] for name in ("stride", "padding", "dilation", "groups")}
    return convolve(tinygrad, x["x"], x["weight"], bias=x.get("bias"), **how)


FUNCTIONS: dict[str, Function] = {
    "linear": lambda tinygrad, x, params: x["x"].linear(x["weight"].T, x.get("bias")),
    "conv2d": _convolution,
    "conv3d": _convolution,
}
