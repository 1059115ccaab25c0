"""RoPE turned wrongly by torch modules, in the three ways in which diffusers and transformers write it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from diffusers.models.transformers import transformer_flux, transformer_qwenimage
from torch.overrides import TorchFunctionMode
from transformers import Qwen3Config, Qwen3Model
from transformers.models.qwen3 import modeling_qwen3

sys.path[:0] = [str(Path(__file__).parent)]
from tiny_modules import MODULES  # noqa: E402

Tensor = torch.Tensor
# (first, second, cos, sin) of pairs -> both turned
Turn = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def right(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return a * cos - b * sin, a * sin + b * cos


def _half_of_them(a, b, cos, sin):
    moves = torch.arange(a.shape[-1]) < a.shape[-1] // 2
    return tuple(torch.where(moves, y, x) for y, x in zip(right(a, b, cos, sin), (a, b), strict=True))


TURNS: dict[str, Turn] = {
    "turned the other way": lambda a, b, cos, sin: right(a, b, cos, -sin),
    "cosine and sine exchanged": lambda a, b, cos, sin: right(a, b, sin, cos),
    "no channel of a pair is negated": lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos),
    "only the first half of the pairs turned": _half_of_them,
}


def turned(x: Tensor, cos: Tensor, sin: Tensor, turn: Turn, halves: bool) -> Tensor:
    """Turn pairs, halves or neighbours. cos, sin: a number each pair"""
    parts = x.chunk(2, dim=-1) if halves else x.unflatten(-1, (-1, 2)).unbind(-1)
    both = turn(*parts, cos, sin)
    return torch.cat(both, -1) if halves else torch.stack(both, -1).flatten(-2)


class _Complex(TorchFunctionMode):
    """Of Z-Image and Qwen-Image: products of complex numbers."""

    def __init__(self, turn: Turn, halves: bool):
        super().__init__()
        self._turn, self._halves = turn, halves

    def __torch_function__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") not in ("mul", "__mul__") or not y.is_complex():
            return y
        x, table = args
        flat = torch.view_as_real(x).flatten(-2)
        other = turned(flat, table.real, table.imag, self._turn, self._halves)
        return torch.view_as_complex(other.unflatten(-1, (-1, 2)).contiguous())


@contextmanager
def wrong(turn: Turn = right, other_pairs: bool = False) -> Iterator[None]:
    """Inside, every RoPE turns so; other_pairs: halves for neighbours, or the reverse."""

    def flux(x, freqs_cis, use_real=True, use_real_unbind_dim=-1, sequence_dim=2):
        cos, sin = (t[None, :, None, ::2] for t in freqs_cis)
        return turned(x, cos, sin, turn, other_pairs)

    def qwen3(q, k, cos, sin, unsqueeze_dim=1):
        tables = [t.unsqueeze(unsqueeze_dim)[..., : t.shape[-1] // 2] for t in (cos, sin)]
        return tuple(turned(x, *tables, turn, not other_pairs) for x in (q, k))

    with (
        mock.patch.object(transformer_flux, "apply_rotary_emb", flux),
        mock.patch.object(modeling_qwen3, "apply_rotary_pos_emb", qwen3),
        _Complex(turn, other_pairs),
    ):
        yield


@contextmanager
def pictures_from_one() -> Iterator[None]:
    """Inside, Qwen-Image's picture has positions that are one larger on each axis; the text keeps its own."""
    own = transformer_qwenimage.QwenEmbedRope.forward

    def forward(*arguments, **named):
        picture, text = own(*arguments, **named)
        turns = torch.cat([1e4 ** (-torch.arange(0, n, 2) / n) for n in (4, 6, 6)])
        return picture * torch.polar(torch.ones_like(turns), turns), text

    with mock.patch.object(transformer_qwenimage.QwenEmbedRope, "forward", forward):
        yield


WRONG = {
    **{name: lambda turn=turn: wrong(turn) for name, turn in TURNS.items()},
    "other pair": lambda: wrong(other_pairs=True),
}


def qwen3():
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        rope_theta=1e6,
    )
    return Qwen3Model(config).eval(), {"input_ids": torch.arange(14).reshape(2, 7) % 11}


# Class -> what builds it, and its calls of RoPE.
BUILT = {**{name: (MODULES[name], 8) for name in ("flux", "zimage", "qwen_image")}, "qwen3": (qwen3, 4)}
