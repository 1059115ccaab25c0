"""Benchmark rows for memory-bound operations, next to a copy of as many bytes by as many threads."""

from collections.abc import Callable
from typing import Any

from refsd.bench.row import Column, Row, computes, normal

# Sizes of SDXL and Flux: image [N, C, H, W], tokens [N, L, D], heads [N, L, H, D], attention scores [rows, J]
IMAGE = (1, 320, 128, 128)
TOKENS = (1, 4096, 3072)
HEADS = (1, 4096, 24, 128)
SCORES = (8192, 1024)


def _copy(floats: int) -> Callable[[Any], Any]:
    def ready(_):
        from refsd.bench.memory_copy import copied

        x = normal("copy", floats)
        return computes(lambda: copied(x))

    return ready


def _row(what: str, refsd, torch, reads: int, writes: int) -> Row:
    floats = (reads + writes) // 2
    columns = {
        "refsd": Column(("refsd",), refsd),
        "copy": Column(("refsd",), _copy(floats)),
        "torch": Column(("torch",), torch),
    }
    return Row(f"memory-bound/{what}", columns, bytes=4 * (reads + writes))


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _pointwise(name: str, torch_name: str) -> Row:
    def refsd(_):
        from refsd.kernels import activations

        x, function = normal("x", *TOKENS), getattr(activations, name)
        return computes(lambda: function(x))

    def peer(torch):
        x = torch.from_numpy(normal("x", *TOKENS))
        keywords = {"approximate": "tanh"} if name == "gelu_tanh" else {}
        return computes(lambda: getattr(torch.nn.functional, torch_name)(x, **keywords))

    return _row(name.replace("_", " "), refsd, peer, _size(TOKENS), _size(TOKENS))


def _group_norm_silu() -> Row:
    C = IMAGE[1]

    def refsd(_):
        from refsd.kernels.group_norm_silu import group_norm_silu

        x, weight, bias = normal("x", *IMAGE), normal("weight", C), normal("bias", C)
        return computes(lambda: group_norm_silu(x, weight, bias, 32, 1e-5))

    def peer(torch):
        x, weight, bias = (torch.from_numpy(normal("x", *shape)) for shape in (IMAGE, (C,), (C,)))
        f = torch.nn.functional
        return computes(lambda: f.silu(f.group_norm(x, 32, weight, bias)))

    return _row("group norm + silu", refsd, peer, _size(IMAGE), _size(IMAGE))


def _norms() -> list[Row]:
    D = TOKENS[-1]

    def layer_norm(_):
        from refsd.kernels.layer_norm import layer_norm

        x, weight, bias = normal("x", *TOKENS).reshape(-1, D), normal("weight", D), normal("bias", D)
        return computes(lambda: layer_norm(x, weight, bias, 1e-5))

    def torch_layer_norm(torch):
        x, weight, bias = (torch.from_numpy(normal("x", *shape)) for shape in (TOKENS, (D,), (D,)))
        return computes(lambda: torch.nn.functional.layer_norm(x, (D,), weight, bias))

    def rms_norm(_):
        from refsd.kernels.rms_norm import rms_norm

        x, weight = normal("x", *TOKENS).reshape(-1, D), normal("weight", D)
        return computes(lambda: rms_norm(x, weight, 1e-6))

    def torch_rms_norm(torch):
        x, weight = (torch.from_numpy(normal("x", *shape)) for shape in (TOKENS, (D,)))
        return computes(lambda: torch.nn.functional.rms_norm(x, (D,), weight, 1e-6))

    def adaptive(_):
        from refsd.kernels.modulate import adaptive_layer_norm

        x, shift, scale = normal("x", *TOKENS), normal("shift", 1, D), normal("scale", 1, D)
        return computes(lambda: adaptive_layer_norm(x, shift, scale, 1e-6))

    def torch_adaptive(torch):
        x, shift, scale = (torch.from_numpy(normal("x", *shape)) for shape in (TOKENS, (1, D), (1, D)))
        norm = torch.nn.functional.layer_norm
        return computes(lambda: norm(x, (D,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None])

    def modulate(_):
        from refsd.kernels.modulate import modulate

        x, shift, scale = normal("x", *TOKENS), normal("shift", 1, D), normal("scale", 1, D)
        return computes(lambda: modulate(x, shift, scale))

    def torch_modulate(torch):
        x, shift, scale = (torch.from_numpy(normal("x", *shape)) for shape in (TOKENS, (1, D), (1, D)))
        return computes(lambda: x * (1 + scale[:, None]) + shift[:, None])

    n = _size(TOKENS)
    return [
        _row("layer norm", layer_norm, torch_layer_norm, n, n),
        _row("rms norm", rms_norm, torch_rms_norm, n, n),
        _row("modulate", modulate, torch_modulate, n, n),
        _row("layer norm + modulate", adaptive, torch_adaptive, n, n),
    ]


def _softmax() -> Row:
    def refsd(_):
        from refsd.kernels.softmax import softmax

        x = normal("x", *SCORES)
        return computes(lambda: softmax(x))

    def peer(torch):
        x = torch.from_numpy(normal("x", *SCORES))
        return computes(lambda: torch.softmax(x, -1))

    return _row("softmax", refsd, peer, _size(SCORES), _size(SCORES))


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

    return _row("rope", refsd, peer, _size(HEADS), _size(HEADS))


def _upsample() -> Row:
    def refsd(_):
        from refsd.kernels.resample import upsample_nearest

        x = normal("x", *IMAGE)
        return computes(lambda: upsample_nearest(x, 2))

    def peer(torch):
        x = torch.from_numpy(normal("x", *IMAGE))
        return computes(lambda: torch.nn.functional.interpolate(x, scale_factor=2))

    return _row("upsample 2x", refsd, peer, _size(IMAGE), 4 * _size(IMAGE))


def _all() -> list[Row]:
    pointwise = [_pointwise("silu", "silu"), _pointwise("gelu", "gelu"), _pointwise("gelu_tanh", "gelu")]
    return [_group_norm_silu(), *_norms(), *pointwise, _softmax(), _rope(), _upsample()]


ROWS = _all()
