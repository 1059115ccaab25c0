"""Layouts, padding, joining and lookup as ONNX nodes."""

from refsd.onnx.operations.function import Function

_MODES = {"zero": "constant", "replicate": "edge", "reflect": "reflect", "circular": "wrap"}


def _patchify(b, x, params):
    N, C, H, W = x["x"].shape
    p = params["patch"]
    y = b.reshape(x["x"], (N, C, H // p, p, W // p, p))
    order = (0, 2, 4, 3, 5, 1) if params["channels_last"] else (0, 2, 4, 1, 3, 5)
    return b.reshape(b.transpose(y, order), (N, -1, C * p * p))


def _unpatchify(b, x, params):
    N, L, D = x["x"].shape
    p, H = params["patch"], params["height"]
    W, C = L // H, D // p**2
    if params["channels_last"]:
        y = b.transpose(b.reshape(x["x"], (N, H, W, p, p, C)), (0, 5, 1, 3, 2, 4))
    else:
        y = b.transpose(b.reshape(x["x"], (N, H, W, C, p, p)), (0, 3, 1, 4, 2, 5))
    return b.reshape(y, (N, C, H * p, W * p))


def _pixel_shuffle(b, x, params):
    return b.node("DepthToSpace", x["x"], blocksize=params["factor"], mode="CRD")


def _pixel_unshuffle(b, x, params):
    """SpaceToDepth has the other order of channels."""
    N, C, H, W = x["x"].shape
    f = params["factor"]
    y = b.transpose(b.reshape(x["x"], (N, C, H // f, f, W // f, f)), (0, 1, 3, 5, 2, 4))
    return b.reshape(y, (N, C * f * f, H // f, W // f))


def _pad(b, x, params):
    top, bottom, left, right = params["padding"]
    return b.node("Pad", x["x"], [0, 0, top, left, 0, 0, bottom, right], mode=_MODES[params["mode"]])


def _roll(b, x, params):
    y = x["x"]
    for axis, by in ((2, params["down"]), (3, params["right"])):
        size = y.shape[axis]
        if by % size:
            cut = size - by % size
            y = b.concat([b.slice(y, axis, cut, size), b.slice(y, axis, 0, cut)], axis)
    return y


FUNCTIONS: dict[str, Function] = {
    "pixel_unshuffle": _pixel_unshuffle,
    "pixel_shuffle": _pixel_shuffle,
    "patchify": _patchify,
    "unpatchify": _unpatchify,
    "pad": _pad,
    "roll": _roll,
    "concat": lambda b, x, params: b.concat([x["a"], x["b"]], params["axis"]),
    "add": lambda b, x, params: b.node("Add", x["a"], x["b"]),
    "mul": lambda b, x, params: b.node("Mul", x["a"], x["b"]),
}
