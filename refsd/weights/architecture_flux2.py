"""The tensors of FLUX.2, of its autoencoder and of Mistral: every name and shape, and the sizes read from them.

Names are black-forest-labs' (the autoencoder's two quant convolutions: SD's) and transformers'. Where a size is
read and a tensor is missing, dev's stands in.
"""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.architecture import Shape, Shapes, VAESize, vae_shapes
from refsd.weights.sizes import count


class Flux2Size(NamedTuple):
    """Of FLUX.2 dev unless given. context: three hidden states; guidance: whether it embeds one."""

    hidden: int = 6144
    double_blocks: int = 8
    single_blocks: int = 48
    mlp: int = 3 * 6144
    head_dim: int = 128
    context: int = 3 * 5120
    channels: int = 128
    guidance: bool = True


class Flux2VAESize(NamedTuple):
    """The small decoder is narrower than its encoder."""

    channels: int = 128
    decoder_channels: int = 128
    channel_mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    latent_channels: int = 32


class MistralSize(NamedTuple):
    """Of Mistral Small 3 (24B) unless given. norm: files that end at layer 30 have no final norm."""

    hidden: int = 5120
    layers: int = 40
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    mlp: int = 32768
    vocab: int = 131072
    norm: bool = True


KLEIN_4B = Flux2Size(3072, 5, 20, mlp=3 * 3072, context=3 * 2560, guidance=False)
KLEIN_9B = Flux2Size(4096, 8, 24, mlp=3 * 4096, context=3 * 4096, guidance=False)


def flux2_shapes(size: Flux2Size) -> Shapes:
    """Flux2 of black-forest-labs/flux2, model.py."""
    D = size.hidden
    shapes: Shapes = {"img_in.weight": (D, size.channels), "txt_in.weight": (D, size.context)}
    for name in ("time_in", "guidance_in") if size.guidance else ("time_in",):
        shapes |= {f"{name}.in_layer.weight": (D, 256), f"{name}.out_layer.weight": (D, D)}
    for i in range(size.double_blocks):
        for stream in ("img", "txt"):
            at = f"double_blocks.{i}.{stream}"
            shapes |= {f"{at}_attn.qkv.weight": (3 * D, D), f"{at}_attn.proj.weight": (D, D)}
            shapes |= {f"{at}_attn.norm.{which}_norm.scale": (size.head_dim,) for which in ("query", "key")}
            shapes |= {f"{at}_mlp.0.weight": (2 * size.mlp, D), f"{at}_mlp.2.weight": (D, size.mlp)}
    for i in range(size.single_blocks):
        at = f"single_blocks.{i}"
        shapes |= {f"{at}.linear1.weight": (3 * D + 2 * size.mlp, D), f"{at}.linear2.weight": (D, D + size.mlp)}
        shapes |= {f"{at}.norm.{which}_norm.scale": (size.head_dim,) for which in ("query", "key")}
    shapes |= {f"double_stream_modulation_{stream}.lin.weight": (6 * D, D) for stream in ("img", "txt")}
    shapes["single_stream_modulation.lin.weight"] = (3 * D, D)
    shapes["final_layer.linear.weight"] = (size.channels, D)
    shapes["final_layer.adaLN_modulation.1.weight"] = (2 * D, D)
    return shapes


def flux2_vae_shapes(size: Flux2VAESize) -> Shapes:
    """SD's autoencoder, and the statistics of its packed latents."""
    half = VAESize(size.channels, size.channel_mult, size.res_blocks, size.latent_channels)
    decoder = vae_shapes(half._replace(channels=size.decoder_channels))
    shapes = {name: decoder[name] if name.startswith("decoder.") else s for name, s in vae_shapes(half).items()}
    return shapes | {f"bn.running_{name}": (4 * size.latent_channels,) for name in ("mean", "var")}


def mistral_shapes(size: MistralSize) -> Shapes:
    """transformers' MistralForCausalLM, without the head that predicts the next token."""
    D, queries, keys = size.hidden, size.heads * size.head_dim, size.kv_heads * size.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (size.vocab, D)}
    for i in range(size.layers):
        at = f"model.layers.{i}"
        shapes[f"{at}.self_attn.q_proj.weight"] = (queries, D)
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (keys, D) for name in "kv"}
        shapes[f"{at}.self_attn.o_proj.weight"] = (D, queries)
        shapes |= {f"{at}.mlp.{name}_proj.weight": (size.mlp, D) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (D, size.mlp)
        shapes |= {f"{at}.{name}_layernorm.weight": (D,) for name in ("input", "post_attention")}
    return shapes | ({"model.norm.weight": (D,)} if size.norm else {})


def flux2_size(shapes: Mapping[str, Shape]) -> Flux2Size:
    """From canonical names."""
    usual = Flux2Size()
    hidden = _dim(shapes, "img_in.weight", 0, usual.hidden)
    return Flux2Size(
        hidden=hidden,
        double_blocks=count(shapes, "double_blocks.", usual.double_blocks),
        single_blocks=count(shapes, "single_blocks.", usual.single_blocks),
        mlp=_dim(shapes, "double_blocks.0.img_mlp.2.weight", 1, 3 * hidden),
        head_dim=_dim(shapes, "double_blocks.0.img_attn.norm.query_norm.scale", 0, usual.head_dim),
        context=_dim(shapes, "txt_in.weight", 1, usual.context),
        channels=_dim(shapes, "img_in.weight", 1, usual.channels),
        guidance=any(name.startswith("guidance_in.") for name in shapes),
    )


def flux2_vae_size(shapes: Mapping[str, Shape]) -> Flux2VAESize:
    """From canonical names."""
    usual = Flux2VAESize()
    channels = _dim(shapes, "encoder.conv_in.weight", 0, usual.channels)
    levels = count(shapes, "encoder.down.", len(usual.channel_mult))
    widths = (
        _dim(shapes, f"encoder.down.{i}.block.0.conv1.weight", 0, _usual(i) * channels) for i in range(levels)
    )
    return Flux2VAESize(
        channels=channels,
        decoder_channels=_dim(shapes, "decoder.norm_out.weight", 0, channels),
        channel_mult=tuple(max(1, width // channels) for width in widths),
        res_blocks=count(shapes, "encoder.down.0.block.", usual.res_blocks),
        latent_channels=_dim(shapes, "decoder.conv_in.weight", 1, usual.latent_channels),
    )


def mistral_size(shapes: Mapping[str, Shape], head_dim: int = 128) -> MistralSize:
    """From canonical names; the width of a head, which they do not tell, is given."""
    usual = MistralSize()
    attention = "model.layers.0.self_attn"
    return MistralSize(
        hidden=_dim(shapes, "model.embed_tokens.weight", 1, usual.hidden),
        layers=count(shapes, "model.layers.", usual.layers),
        heads=max(1, _dim(shapes, f"{attention}.q_proj.weight", 0, usual.heads * head_dim) // head_dim),
        kv_heads=max(1, _dim(shapes, f"{attention}.k_proj.weight", 0, usual.kv_heads * head_dim) // head_dim),
        head_dim=head_dim,
        mlp=_dim(shapes, "model.layers.0.mlp.gate_proj.weight", 0, usual.mlp),
        vocab=_dim(shapes, "model.embed_tokens.weight", 0, usual.vocab),
        norm="model.norm.weight" in shapes,
    )


def _usual(level: int) -> int:
    mults = Flux2VAESize().channel_mult
    return mults[min(level, len(mults) - 1)]


def _dim(shapes: Mapping[str, Shape], name: str, axis: int, default: int) -> int:
    """One dimension; the default where the tensor is missing or has no such one."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) and shape[axis] > 0 else default
