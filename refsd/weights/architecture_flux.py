"""The tensors of FLUX.1: every name and shape, in the order of the original's modules, and the size they tell."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.layer_shapes import Shape, Shapes, linear
from refsd.weights.sizes import count, dim, has


class FluxSize(NamedTuple):
    """Of FLUX.1-dev unless given.

    in_channels, out_channels: of a token, 4 a latent channel
    head_dim:                  of the norms of queries and keys
    pooled:                    channels of CLIP's pooled text
    frequencies:               waves that embed the time
    """

    hidden: int = 3072
    double_blocks: int = 19
    single_blocks: int = 38
    head_dim: int = 128
    mlp: int = 12288
    in_channels: int = 64
    out_channels: int = 64
    context_dim: int = 4096
    pooled: int = 768
    frequencies: int = 256
    guidance: bool = True


FLUX_DEV = FluxSize()
FLUX_SCHNELL = FluxSize(guidance=False)
FLUX_FILL = FluxSize(in_channels=384)
FLUX_CONTROL = FluxSize(in_channels=128)


def flux_shapes(size: FluxSize) -> Shapes:
    """black-forest-labs/flux, model.py: Flux."""
    D = size.hidden
    shapes = linear("img_in", size.in_channels, D) | embedder("time_in", size.frequencies, D)
    shapes |= embedder("vector_in", size.pooled, D)
    if size.guidance:
        shapes |= embedder("guidance_in", size.frequencies, D)
    shapes |= linear("txt_in", size.context_dim, D)
    for i in range(size.double_blocks):
        at = f"double_blocks.{i}"
        for stream in ("img", "txt"):
            shapes |= linear(f"{at}.{stream}_mod.lin", D, 6 * D)
            shapes |= double_stream(at, stream, D, size.head_dim, size.mlp)
    for i in range(size.single_blocks):
        at = f"single_blocks.{i}"
        shapes |= single_stream(at, D, size.head_dim, size.mlp) | linear(f"{at}.modulation.lin", D, 3 * D)
    shapes |= linear("final_layer.linear", D, size.out_channels)
    return shapes | linear("final_layer.adaLN_modulation.1", D, 2 * D)


def flux_size(shapes: Mapping[str, Shape]) -> FluxSize:
    """From canonical names. What is missing is FLUX.1-dev's; guidance is what the names say."""
    usual = FluxSize()
    return FluxSize(
        **trunk_size(shapes),
        pooled=dim(shapes, "vector_in.in_layer.weight", 1, usual.pooled),
        frequencies=dim(shapes, "time_in.in_layer.weight", 1, usual.frequencies),
        guidance=has(shapes, "guidance_in.") or not has(shapes, "img_in."),
    )


def trunk_size(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """What FLUX.1 and Chroma have both."""
    usual = FluxSize()
    hidden = dim(shapes, "img_in.weight", 0, dim(shapes, "img_in.bias", 0, usual.hidden))
    mlp = dim(shapes, "single_blocks.0.linear2.weight", 1, 5 * hidden) - hidden
    norm = "img_attn.norm.query_norm.scale"
    single = dim(shapes, "single_blocks.0.norm.query_norm.scale", 0, usual.head_dim)
    return {
        "hidden": hidden,
        "double_blocks": count(shapes, "double_blocks.", usual.double_blocks),
        "single_blocks": count(shapes, "single_blocks.", usual.single_blocks),
        "head_dim": dim(shapes, f"double_blocks.0.{norm}", 0, single),
        "mlp": dim(shapes, "double_blocks.0.img_mlp.0.weight", 0, mlp if mlp > 0 else 4 * hidden),
        "in_channels": dim(shapes, "img_in.weight", 1, usual.in_channels),
        "out_channels": dim(shapes, "final_layer.linear.weight", 0, usual.out_channels),
        "context_dim": dim(shapes, "txt_in.weight", 1, usual.context_dim),
    }


def embedder(name: str, inputs: int, outputs: int) -> Shapes:
    """modules/layers.py: MLPEmbedder."""
    return linear(f"{name}.in_layer", inputs, outputs) | linear(f"{name}.out_layer", outputs, outputs)


def double_stream(at: str, stream: str, hidden: int, head_dim: int, mlp: int) -> Shapes:
    """One stream of a DoubleStreamBlock, without its modulation."""
    shapes = linear(f"{at}.{stream}_attn.qkv", hidden, 3 * hidden)
    shapes |= qk_norm(f"{at}.{stream}_attn.norm", head_dim) | linear(f"{at}.{stream}_attn.proj", hidden, hidden)
    return shapes | linear(f"{at}.{stream}_mlp.0", hidden, mlp) | linear(f"{at}.{stream}_mlp.2", mlp, hidden)


def single_stream(at: str, hidden: int, head_dim: int, mlp: int) -> Shapes:
    """A SingleStreamBlock, without its modulation."""
    shapes = linear(f"{at}.linear1", hidden, 3 * hidden + mlp) | linear(f"{at}.linear2", hidden + mlp, hidden)
    return shapes | qk_norm(f"{at}.norm", head_dim)


def qk_norm(at: str, head_dim: int) -> Shapes:
    return {f"{at}.{which}_norm.scale": (head_dim,) for which in ("query", "key")}
