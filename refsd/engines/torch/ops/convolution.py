"""Convolutions and their patches by torch."""

from refsd.engines.torch.ops.function import Function


def _padded(torch, x, padding):
    """Pad with zeros. padding: before and after each axis, from the first; torch's order is from the last."""
    axes = [padding[i : i + 2] for i in range(0, len(padding), 2)]
    return torch.nn.functional.pad(x, [side for axis in reversed(axes) for side in axis])


def _convolution(axes: int) -> Function:
    def convolve(torch, x, params):
        function = getattr(torch.nn.functional, f"conv{axes}d")
        padded = _padded(torch, x["x"], params["padding"])
        how = {name: params[name] for name in ("stride", "dilation", "groups")}
        return function(padded, x["weight"], x.get("bias"), **how)

    return convolve


def _im2col(torch, x, params):
    padded = _padded(torch, x["x"], params["padding"])
    how = {name: params[name] for name in ("stride", "dilation")}
    return torch.nn.functional.unfold(padded, tuple(params["kernel"]), **how)


FUNCTIONS: dict[str, Function] = {
    "conv2d": _convolution(2),
    "conv3d": _convolution(3),
    "im2col": _im2col,
}
