"""Data layout by torch: patches, padding, pixel shuffle, concat; and element-wise add and mul."""

from refsd.engines.torch.ops.function import Function

_MODES = {"zero": "constant", "replicate": "replicate", "reflect": "reflect", "circular": "circular"}


def _patchify(torch, x, params):
    """unfold orders channels and pixels as a patch-embedding convolution does."""
    p = params["patch"]
    tokens = torch.nn.functional.unfold(x["x"], p, stride=p).transpose(1, 2)
    return _channels_last(tokens, p) if params["channels_last"] else tokens


def _channels_last(tokens, p):
    N, L, D = tokens.shape
    return tokens.reshape(N, L, D // p**2, p**2).transpose(2, 3).reshape(N, L, D)


def _unpatchify(torch, x, params):
    p, tokens = params["patch"], x["x"]
    N, L, D = tokens.shape
    if params["channels_last"]:
        tokens = tokens.reshape(N, L, p**2, D // p**2).transpose(2, 3).reshape(N, L, D)
    size = (params["height"] * p, L // params["height"] * p)
    return torch.nn.functional.fold(tokens.transpose(1, 2), size, p, stride=p)


def _pad(torch, x, params):
    top, bottom, left, right = params["padding"]
    return torch.nn.functional.pad(x["x"], (left, right, top, bottom), mode=_MODES[params["mode"]])


FUNCTIONS: dict[str, Function] = {
    "pixel_unshuffle": lambda torch, x, params: torch.nn.functional.pixel_unshuffle(x["x"], params["factor"]),
    "pixel_shuffle": lambda torch, x, params: torch.nn.functional.pixel_shuffle(x["x"], params["factor"]),
    "patchify": _patchify,
    "unpatchify": _unpatchify,
    "pad": _pad,
    "roll": lambda torch, x, params: torch.roll(x["x"], (params["down"], params["right"]), (2, 3)),
    "concat": lambda torch, x, params: torch.cat([x["a"], x["b"]], dim=params["axis"]),
    "add": lambda torch, x, params: x["a"] + x["b"],
    "mul": lambda torch, x, params: x["a"] * x["b"],
}
