"""Convolutions and their patches by torch."""

from refsd.golden.engines.torch_ops.function import Function


def _padded(torch, x, padding):
    top, bottom, left, right = padding
    return torch.nn.functional.pad(x, (left, right, top, bottom))


def _conv2d(torch, x, params):
    padded = _padded(torch, x["x"], params["padding"])
    return torch.nn.functional.conv2d(padded, x["weight"], x.get("bias"), params["stride"])


def _im2col(torch, x, params):
    padded = _padded(torch, x["x"], params["padding"])
    return torch.nn.functional.unfold(padded, tuple(params["kernel"]), stride=params["stride"])


FUNCTIONS: dict[str, Function] = {
    "conv2d": _conv2d,
    "im2col": _im2col,
}
