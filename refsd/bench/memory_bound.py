"""Benchmark rows for memory-bound operations, next to a copy of as many bytes by as many threads."""

import importlib
import math
from collections.abc import Callable

from refsd.bench.row import Column, Row, computes, normal

# Sizes of SDXL and Flux: image [N, C, H, W], tokens [N, L, D], heads [N, L, H, D], attention scores [rows, J]
IMAGE = (1, 320, 128, 128)
TOKENS = (1, 4096, 3072)
HEADS = (1, 4096, 24, 128)
SCORES = (8192, 1024)

Shape = tuple[int, ...]


def _row(what: str, refsd: Callable, torch: Callable, floats: int) -> Row:
    """Make a row. floats: numbers that are read and written"""

    def copy(_):
        from refsd.bench.memory_copy import copied

        x = normal("copy", floats // 2)
        return computes(lambda: copied(x))

    columns = {
        "refsd": Column(("refsd",), refsd),
        "copy": Column(("refsd",), copy),
        "torch": Column(("torch",), torch),
    }
    return Row(f"memory-bound/{what}", columns, bytes=4 * floats)


def _call(what: str, kernel: str, shapes: tuple[Shape, ...], more: tuple, torch: Callable, writes: int = 1) -> Row:
    """Make the row of one call.

    kernel: "module.function" of refsd/kernels
    shapes: of its arrays, the first of which counts as what it reads; more: its further arguments
    torch:  (torch, tensors) -> torch's result
    writes: size of the result as a multiple of the first array's
    """

    def arrays():
        return [normal(f"input {i}", *shape) for i, shape in enumerate(shapes)]

    def refsd(_):
        module, name = kernel.split(".")
        function, inputs = getattr(importlib.import_module(f"refsd.kernels.{module}"), name), arrays()
        return computes(lambda: function(*inputs, *more))

    def peer(library):
        tensors = [library.from_numpy(array) for array in arrays()]
        return computes(lambda: torch(library, *tensors))

    return _row(what, refsd, peer, math.prod(shapes[0]) * (1 + writes))


def _modulated(torch, x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


def _rope() -> Row:
    N, L, _, D = HEADS

    def refsd(_):
        from refsd.kernels.rope import apply_rope

        x, angle = normal("x", *HEADS), normal("angle", N, L, D // 2).astype(float)
        return computes(lambda: apply_rope(x, angle))

    def peer(torch):
        x, angle = torch.from_numpy(normal("x", *HEADS)), torch.from_numpy(normal("angle", N, L, 1, D // 2))
        cos, sin = angle.cos(), angle.sin()

        def turn():
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

        return computes(turn)

    return _row("rope", refsd, peer, 2 * math.prod(HEADS))


def _all() -> list[Row]:
    N, L, D = TOKENS
    C, rows, channels, item = (IMAGE[1],), (N * L, D), (D,), (N, D)
    return [
        _call(
            "group norm + silu",
            "group_norm_silu.group_norm_silu",
            (IMAGE, C, C),
            (32, 1e-5),
            lambda torch, x, w, b: torch.nn.functional.silu(torch.nn.functional.group_norm(x, 32, w, b)),
        ),
        _call(
            "layer norm",
            "layer_norm.layer_norm",
            (rows, channels, channels),
            (1e-5,),
            lambda torch, x, w, b: torch.nn.functional.layer_norm(x, channels, w, b),
        ),
        _call(
            "rms norm",
            "rms_norm.rms_norm",
            (rows, channels),
            (1e-6,),
            lambda torch, x, w: torch.nn.functional.rms_norm(x, channels, w, 1e-6),
        ),
        _call("modulate", "modulate.modulate", (TOKENS, item, item), (), _modulated),
        _call(
            "layer norm + modulate",
            "modulate.adaptive_layer_norm",
            (TOKENS, item, item),
            (1e-6,),
            lambda torch, x, *how: _modulated(torch, torch.nn.functional.layer_norm(x, channels, eps=1e-6), *how),
        ),
        _call("silu", "activations.silu", (TOKENS,), (), lambda torch, x: torch.nn.functional.silu(x)),
        _call("gelu", "activations.gelu", (TOKENS,), (), lambda torch, x: torch.nn.functional.gelu(x)),
        _call(
            "gelu tanh",
            "activations.gelu_tanh",
            (TOKENS,),
            (),
            lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        ),
        _call("softmax", "softmax.softmax", (SCORES,), (), lambda torch, x: torch.softmax(x, -1)),
        _rope(),
        _call(
            "upsample 2x",
            "resample.upsample_nearest",
            (IMAGE,),
            (2,),
            lambda torch, x: torch.nn.functional.interpolate(x, scale_factor=2),
            writes=4,
        ),
    ]


ROWS = _all()
