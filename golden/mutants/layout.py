"""Known bugs of layout: the right numbers in the wrong places."""

import numpy as np

from refsd.golden.mutants.mutant import (
    BATCH,
    F16_INPUT,
    IMAGE,
    Mutant,
    Wrong,
    answer,
    other_input,
    other_params,
    to_float16,
)


def channels(order: str) -> Wrong:
    """The parts (c, i, j) of y's channels in another order; "cij" is right."""

    def wrong(op, inputs, params):
        y, p = answer(op, inputs, params), params["factor"]
        N, _, H, W = y.shape
        parts = dict(zip("cij", range(1, 4), strict=True))
        y = y.reshape(N, -1, p, p, H, W).transpose(0, *(parts[axis] for axis in order), 4, 5)
        return y.reshape(N, -1, H, W)

    return wrong


def read_channels(order: str) -> Wrong:
    """The parts of x's channels taken for another order."""

    def wrong(op, inputs, params):
        p = params["factor"]

        def reordered(x):
            N, C, H, W = x.shape
            size = {"c": C // (p * p), "i": p, "j": p}
            x = x.reshape(N, *(size[axis] for axis in order), H, W)
            return x.transpose(0, *(1 + order.index(axis) for axis in "cij"), 4, 5).reshape(N, C, H, W)

        return other_input("x", reordered)(op, inputs, params)

    return wrong


def tokens_by_column(op, inputs, params):
    y = answer(op, inputs, params)
    H, W = (size // params["patch"] for size in inputs["x"].shape[2:])
    return y.reshape(len(y), H, W, -1).swapaxes(1, 2).reshape(y.shape)


def read_by_column(op, inputs, params):
    def reordered(x):
        N, L, D = x.shape
        H = params["height"]
        return x.reshape(N, L // H, H, D).swapaxes(1, 2).reshape(x.shape)

    return other_input("x", reordered)(op, inputs, params)


def _block(t: np.ndarray, patch: int, channels_last: bool) -> np.ndarray:
    """Row and column within each token exchanged."""
    N, L, D = t.shape
    C = D // patch**2
    shape, axes = ((patch, patch, C), (0, 1, 3, 2, 4)) if channels_last else ((C, patch, patch), (0, 1, 2, 4, 3))
    return t.reshape(N, L, *shape).transpose(axes).reshape(t.shape)


def block_transposed(op, inputs, params):
    how = params["patch"], params["channels_last"]
    if op == "patchify":
        return _block(answer(op, inputs, params), *how)
    return other_input("x", lambda x: _block(x, *how))(op, inputs, params)


def bordered(mode: str) -> Wrong:
    return lambda op, i, p: answer(op, i, {**p, "mode": mode}) if p["mode"] != mode else None


def other_sides(op, inputs, params):
    top, bottom, left, right = params["padding"]
    return answer(op, inputs, {**params, "padding": (bottom, top, right, left)})


def turned_sides(op, inputs, params):
    top, bottom, left, right = params["padding"]
    y = answer(op, {**inputs}, {**params, "padding": (left, right, top, bottom)})
    return y if (top + bottom) == (left + right) else None


def symmetric(op, inputs, params):
    """Mirrored with the outermost pixel repeated."""
    top, bottom, left, right = params["padding"]
    if params["mode"] != "reflect":
        return None
    return np.pad(inputs["x"].values(), ((0, 0), (0, 0), (top, bottom), (left, right)), "symmetric")


def rolled_turned(op, inputs, params):
    return answer(op, inputs, {"down": params["right"], "right": params["down"]})


def not_around(op, inputs, params):
    """Zeros enter."""
    y, (down, right) = answer(op, inputs, params), (params["down"], params["right"])
    y = y.copy()
    y[:, :, slice(0, down) if down >= 0 else slice(down, None)] = 0
    y[:, :, :, slice(0, right) if right >= 0 else slice(right, None)] = 0
    return y


def b_first(op, inputs, params):
    a, b = (inputs[name].values() for name in ("a", "b"))
    return np.concatenate([b, a], axis=params["axis"])


def interleaved(op, inputs, params):
    """The parts taken turn by turn."""
    a, b = (np.moveaxis(inputs[name].values(), params["axis"], 0) for name in ("a", "b"))
    n = min(len(a), len(b))
    y = np.concatenate([np.stack([a[:n], b[:n]], axis=1).reshape(2 * n, *a.shape[1:]), a[n:], b[n:]])
    return np.moveaxis(y, 0, params["axis"])


def read_along_the_wrong_axis(b: np.ndarray) -> np.ndarray:
    """The right numbers, read with the fastest axis slowest."""
    return b.T.reshape(b.shape)


def repeated_wrongly(op, inputs, params):
    """b's memory repeated until a is full, as if its leading axes were the ones that repeat."""
    a, b = (inputs[name].values() for name in ("a", "b"))
    flat = np.resize(b.ravel(), a.shape).astype(np.float32)
    return a + flat if op == "add" else a * flat


_PAIR = (
    Mutant("b repeated along the wrong axes", repeated_wrongly),
    Mutant("b read along the wrong axis", other_input("b", read_along_the_wrong_axis)),
    Mutant("b silently float16", other_input("b", to_float16)),
)
_TOKENS = (
    Mutant("channels at the other end", other_params(channels_last=lambda last: not last)),
    Mutant("row and column within a token exchanged", block_transposed),
    BATCH,
)

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "pixel_unshuffle": (
        Mutant("place before channel", channels("ijc")),
        Mutant("column before row", channels("cji")),
        IMAGE,
        BATCH,
        F16_INPUT,
    ),
    "pixel_shuffle": (
        Mutant("place before channel", read_channels("ijc")),
        Mutant("column before row", read_channels("cji")),
        IMAGE,
        BATCH,
        F16_INPUT,
    ),
    "patchify": (*_TOKENS, Mutant("tokens column by column", tokens_by_column), IMAGE),
    "unpatchify": (*_TOKENS, Mutant("tokens column by column", read_by_column)),
    "pad": (
        Mutant("zeros", bordered("zero")),
        Mutant("the border's pixel repeated", bordered("replicate")),
        Mutant("mirrored", bordered("reflect")),
        Mutant("the other side", bordered("circular")),
        Mutant("mirrored, the outermost pixel too", symmetric),
        Mutant("sides exchanged", other_sides),
        Mutant("rows and columns exchanged", turned_sides),
        IMAGE,
        BATCH,
    ),
    "roll": (
        Mutant("the other way", lambda op, i, p: answer(op, i, {"down": -p["down"], "right": -p["right"]})),
        Mutant("rows and columns exchanged", rolled_turned),
        Mutant("zeros enter", not_around),
        IMAGE,
        BATCH,
    ),
    "concat": (
        Mutant("b first", b_first),
        Mutant("interleaved", interleaved),
        Mutant("b silently float16", other_input("b", to_float16)),
    ),
    "add": _PAIR,
    "mul": _PAIR,
}
