"""The tensors of Z-Image: every name and shape, in the order of the original's modules, and the size they tell.

Names are the single file's, as in models/zimage.py.
"""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.layer_shapes import Shape, Shapes, linear
from refsd.weights.sizes import count, dim


class ZImageSize(NamedTuple):
    """
    channels:    of a token: a patch's
    head_dim:    of the norms of queries and keys
    context_dim: channels of Qwen3's hidden states
    frequencies: waves that embed the time
    time_mlp:    how wide the time's embedding is within
    time_dim:    and how wide what comes out, which modulates
    """

    hidden: int = 3840
    layers: int = 30
    noise_refiners: int = 2
    context_refiners: int = 2
    head_dim: int = 128
    mlp: int = 10240
    channels: int = 64
    context_dim: int = 2560
    frequencies: int = 256
    time_mlp: int = 1024
    time_dim: int = 256


ZIMAGE = ZImageSize()


def zimage_shapes(size: ZImageSize) -> Shapes:
    """Tongyi-MAI/Z-Image, zimage/transformer.py: ZImageTransformer2DModel."""
    D, C = size.hidden, size.time_dim
    shapes: Shapes = {"x_pad_token": (1, D), "cap_pad_token": (1, D)}
    shapes |= linear("x_embedder", size.channels, D)
    shapes |= linear("final_layer.linear", D, size.channels) | linear("final_layer.adaLN_modulation.1", C, D)
    for i in range(size.noise_refiners):
        shapes |= _block(f"noise_refiner.{i}", size) | linear(f"noise_refiner.{i}.adaLN_modulation.0", C, 4 * D)
    for i in range(size.context_refiners):
        shapes |= _block(f"context_refiner.{i}", size)
    shapes |= linear("t_embedder.mlp.0", size.frequencies, size.time_mlp)
    shapes |= linear("t_embedder.mlp.2", size.time_mlp, C)
    shapes |= {"cap_embedder.0.weight": (size.context_dim,)} | linear("cap_embedder.1", size.context_dim, D)
    for i in range(size.layers):
        shapes |= _block(f"layers.{i}", size) | linear(f"layers.{i}.adaLN_modulation.0", C, 4 * D)
    return shapes


def zimage_size(shapes: Mapping[str, Shape]) -> ZImageSize:
    """From canonical names. What is missing is Z-Image's own."""
    usual = ZImageSize()
    hidden = dim(shapes, "x_embedder.weight", 0, dim(shapes, "x_embedder.bias", 0, usual.hidden))
    caption = dim(shapes, "cap_embedder.0.weight", 0, usual.context_dim)
    waves = "t_embedder.mlp.0.weight"
    return ZImageSize(
        hidden=hidden,
        layers=count(shapes, "layers.", usual.layers),
        noise_refiners=count(shapes, "noise_refiner.", usual.noise_refiners),
        context_refiners=count(shapes, "context_refiner.", usual.context_refiners),
        head_dim=dim(shapes, "layers.0.attention.q_norm.weight", 0, usual.head_dim),
        mlp=dim(shapes, "layers.0.feed_forward.w1.weight", 0, hidden * 8 // 3),
        channels=dim(shapes, "x_embedder.weight", 1, usual.channels),
        context_dim=dim(shapes, "cap_embedder.1.weight", 1, caption),
        frequencies=dim(shapes, waves, 1, usual.frequencies),
        time_mlp=dim(shapes, waves, 0, usual.time_mlp),
        time_dim=dim(shapes, "t_embedder.mlp.2.weight", 0, min(hidden, usual.time_dim)),
    )


def _block(at: str, size: ZImageSize) -> Shapes:
    D = size.hidden
    shapes = linear(f"{at}.attention.qkv", D, 3 * D, bias=False) | linear(f"{at}.attention.out", D, D, bias=False)
    shapes |= {f"{at}.attention.{which}_norm.weight": (size.head_dim,) for which in "qk"}
    shapes |= linear(f"{at}.feed_forward.w1", D, size.mlp, bias=False)
    shapes |= linear(f"{at}.feed_forward.w2", size.mlp, D, bias=False)
    shapes |= linear(f"{at}.feed_forward.w3", D, size.mlp, bias=False)
    return shapes | {f"{at}.{name}.weight": (D,) for name in NORMS}


NORMS = ("attention_norm1", "ffn_norm1", "attention_norm2", "ffn_norm2")
