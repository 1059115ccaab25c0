"""The tensors of Stable Diffusion 3 and 3.5: every name and shape, and the size they tell."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.layer_shapes import Shape, Shapes, conv, linear
from refsd.weights.sizes import count, dim


class MMDiTSize(NamedTuple):
    """SD3 medium's unless given.

    channels:    of the latent
    table:       patches on a side of the square of positions
    frequencies: waves that embed the time
    qk_norm:     channels of the norms of queries and keys, a head's; 0 where there are none
    dual:        the blocks whose picture has a second attention, MMDiT-X's
    """

    hidden: int = 1536
    blocks: int = 24
    mlp: int = 6144
    channels: int = 16
    patch: int = 2
    table: int = 192
    context_dim: int = 4096
    pooled: int = 2048
    frequencies: int = 256
    qk_norm: int = 0
    dual: tuple[int, ...] = ()


SD3_MEDIUM = MMDiTSize()
SD35_MEDIUM = MMDiTSize(table=384, qk_norm=64, dual=tuple(range(13)))
SD35_LARGE = MMDiTSize(hidden=2432, blocks=38, mlp=9728, qk_norm=64)


def mmdit_shapes(size: MMDiTSize) -> Shapes:
    """Stability-AI/sd3.5, mmditx.py: MMDiTX."""
    D, p = size.hidden, size.patch
    shapes: Shapes = {"pos_embed": (1, size.table**2, D)} | conv("x_embedder.proj", size.channels, D, p)
    for name, inputs in (("t_embedder", size.frequencies), ("y_embedder", size.pooled)):
        shapes |= linear(f"{name}.mlp.0", inputs, D) | linear(f"{name}.mlp.2", D, D)
    shapes |= linear("context_embedder", size.context_dim, D)
    for i in range(size.blocks):
        shapes |= _block(f"joint_blocks.{i}.context_block", size, last=i == size.blocks - 1)
        shapes |= _block(f"joint_blocks.{i}.x_block", size, dual=i in size.dual)
    shapes |= linear("final_layer.linear", D, p * p * size.channels)
    return shapes | linear("final_layer.adaLN_modulation.1", D, 2 * D)


def mmdit_size(shapes: Mapping[str, Shape]) -> MMDiTSize:
    """From canonical names. What is missing is SD3 medium's."""
    usual = MMDiTSize()
    proj, attention, fc1 = "x_embedder.proj", "joint_blocks.0.x_block.attn", "joint_blocks.0.x_block.mlp.fc1"
    hidden = dim(shapes, f"{proj}.weight", 0, dim(shapes, f"{proj}.bias", 0, usual.hidden))
    blocks = count(shapes, "joint_blocks.", usual.blocks)
    key_norm = dim(shapes, f"{attention}.ln_k.weight", 0, 0)
    duals = {name.split(".")[1] for name in shapes if ".x_block.attn2." in name}
    return MMDiTSize(
        hidden=hidden,
        blocks=blocks,
        mlp=dim(shapes, f"{fc1}.weight", 0, dim(shapes, f"{fc1}.bias", 0, 4 * hidden)),
        channels=dim(shapes, f"{proj}.weight", 1, usual.channels),
        patch=dim(shapes, f"{proj}.weight", 2, usual.patch),
        table=max(1, math.isqrt(dim(shapes, "pos_embed", 1, usual.table**2))),
        context_dim=dim(shapes, "context_embedder.weight", 1, usual.context_dim),
        pooled=dim(shapes, "y_embedder.mlp.0.weight", 1, usual.pooled),
        frequencies=dim(shapes, "t_embedder.mlp.0.weight", 1, usual.frequencies),
        qk_norm=dim(shapes, f"{attention}.ln_q.weight", 0, key_norm),
        dual=tuple(i for i in range(blocks) if str(i) in duals),
    )


def _block(at: str, size: MMDiTSize, dual: bool = False, last: bool = False) -> Shapes:
    """A stream of a joint block. last: only looked at, for nothing follows."""
    D = size.hidden
    shapes: Shapes = {}
    for attention in ("attn", "attn2") if dual else ("attn",):
        shapes |= linear(f"{at}.{attention}.qkv", D, 3 * D)
        if not last:
            shapes |= linear(f"{at}.{attention}.proj", D, D)
        if size.qk_norm:
            shapes |= {f"{at}.{attention}.ln_{which}.weight": (size.qk_norm,) for which in "qk"}
    if not last:
        shapes |= linear(f"{at}.mlp.fc1", D, size.mlp) | linear(f"{at}.mlp.fc2", size.mlp, D)
    return shapes | linear(f"{at}.adaLN_modulation.1", D, (2 if last else 9 if dual else 6) * D)
