"""The tensors of FLUX.2, of its autoencoder and of Mistral: every name and shape, and the sizes read from them.

Names are black-forest-labs' (the autoencoder's two quant convolutions: SD's) and transformers'. Where a size is
read and a tensor is missing, dev's stands in.
"""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.weights.architecture import VAESize, vae_shapes
from refsd.weights.architecture_flux import qk_norm
from refsd.weights.layer_shapes import Shape, Shapes, linear
from refsd.weights.sizes import count, dim, has


class Flux2Size(NamedTuple):
    """Of FLUX.2 dev unless given. in_channels: of a token, and a pixel; context_dim: three hidden states wide."""

    hidden: int = 6144
    double_blocks: int = 8
    single_blocks: int = 48
    head_dim: int = 128
    mlp: int = 3 * 6144
    in_channels: int = 128
    context_dim: int = 3 * 5120
    guidance: bool = True


class Flux2VAESize(NamedTuple):
    """The small decoder is narrower than its encoder."""

    channels: int = 128
    decoder_channels: int = 128
    channel_mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    latent_channels: int = 32


class MistralSize(NamedTuple):
    """Of Mistral Small 3 (24B) unless given. norm: ComfyUI's files, which end at layer 30, have no final one."""

    hidden: int = 5120
    layers: int = 40
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    mlp: int = 32768
    vocab: int = 131072
    norm: bool = True


FLUX2_DEV = Flux2Size()
FLUX2_KLEIN_4B = Flux2Size(3072, 5, 20, mlp=3 * 3072, context_dim=3 * 2560, guidance=False)
FLUX2_KLEIN_9B = Flux2Size(4096, 8, 24, mlp=3 * 4096, context_dim=3 * 4096, guidance=False)


def flux2_shapes(size: Flux2Size) -> Shapes:
    """black-forest-labs/flux2, model.py: Flux2."""
    D = size.hidden
    shapes = bare("img_in", size.in_channels, D) | embedder("time_in", D)
    if size.guidance:
        shapes |= embedder("guidance_in", D)
    shapes |= bare("txt_in", size.context_dim, D)
    for i in range(size.double_blocks):
        for stream in ("img", "txt"):
            at = f"double_blocks.{i}.{stream}"
            shapes |= bare(f"{at}_attn.qkv", D, 3 * D) | qk_norm(f"{at}_attn.norm", size.head_dim)
            shapes |= bare(f"{at}_attn.proj", D, D)
            shapes |= bare(f"{at}_mlp.0", D, 2 * size.mlp) | bare(f"{at}_mlp.2", size.mlp, D)
    for i in range(size.single_blocks):
        at = f"single_blocks.{i}"
        shapes |= bare(f"{at}.linear1", D, 3 * D + 2 * size.mlp) | bare(f"{at}.linear2", D + size.mlp, D)
        shapes |= qk_norm(f"{at}.norm", size.head_dim)
    for stream in ("img", "txt"):
        shapes |= bare(f"double_stream_modulation_{stream}.lin", D, 6 * D)
    shapes |= bare("single_stream_modulation.lin", D, 3 * D) | bare("final_layer.linear", D, size.in_channels)
    return shapes | bare("final_layer.adaLN_modulation.1", D, 2 * D)


def bare(name: str, inputs: int, outputs: int) -> Shapes:
    return linear(name, inputs, outputs, bias=False)


def embedder(name: str, hidden: int) -> Shapes:
    return bare(f"{name}.in_layer", 256, hidden) | bare(f"{name}.out_layer", hidden, hidden)


def flux2_vae_shapes(size: Flux2VAESize) -> Shapes:
    """SD's autoencoder, and the statistics of its packed latents."""
    wide = VAESize(
        channels=size.channels,
        channel_mult=size.channel_mult,
        res_blocks=size.res_blocks,
        latent_channels=size.latent_channels,
    )
    decoder = vae_shapes(wide._replace(channels=size.decoder_channels))
    shapes = {name: decoder[name] if name.startswith("decoder.") else s for name, s in vae_shapes(wide).items()}
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
    """From canonical names. What is missing is dev's; guidance is what the names say."""
    usual = FLUX2_DEV
    hidden = dim(shapes, "img_in.weight", 0, dim(shapes, "final_layer.linear.weight", 1, usual.hidden))
    mlp = dim(shapes, "single_blocks.0.linear2.weight", 1, 4 * hidden) - hidden
    single = dim(shapes, "single_blocks.0.norm.query_norm.scale", 0, usual.head_dim)
    return Flux2Size(
        hidden=hidden,
        double_blocks=count(shapes, "double_blocks.", usual.double_blocks),
        single_blocks=count(shapes, "single_blocks.", usual.single_blocks),
        head_dim=dim(shapes, "double_blocks.0.img_attn.norm.query_norm.scale", 0, single),
        mlp=dim(shapes, "double_blocks.0.img_mlp.2.weight", 1, mlp if mlp > 0 else 3 * hidden),
        in_channels=dim(shapes, "img_in.weight", 1, usual.in_channels),
        context_dim=dim(shapes, "txt_in.weight", 1, usual.context_dim),
        guidance=has(shapes, "guidance_in.") or not shapes,
    )


def flux2_vae_size(shapes: Mapping[str, Shape]) -> Flux2VAESize:
    """From canonical names. What is missing is FLUX.2's."""
    usual = Flux2VAESize()
    channels = dim(shapes, "encoder.conv_in.weight", 0, usual.channels)
    levels = count(shapes, "encoder.down.", len(usual.channel_mult))
    widths = (dim(shapes, f"encoder.down.{i}.block.0.conv1.weight", 0, _usual(i) * channels) for i in range(levels))
    mults = tuple(max(1, width // channels) for width in widths)
    return Flux2VAESize(
        channels=channels,
        decoder_channels=max(1, dim(shapes, "decoder.norm_out.weight", 0, mults[0] * channels) // mults[0]),
        channel_mult=mults,
        res_blocks=count(shapes, "encoder.down.0.block.", usual.res_blocks),
        latent_channels=dim(shapes, "decoder.conv_in.weight", 1, usual.latent_channels),
    )


def mistral_size(shapes: Mapping[str, Shape], head_dim: int = 128) -> MistralSize:
    """From canonical names; the width of a head, which they do not tell, is given. A whole file has a norm."""
    usual = MistralSize()
    layers = count(shapes, "model.layers.", usual.layers)
    attention = "model.layers.0.self_attn"
    return MistralSize(
        hidden=dim(shapes, "model.embed_tokens.weight", 1, usual.hidden),
        layers=layers,
        heads=max(1, dim(shapes, f"{attention}.q_proj.weight", 0, usual.heads * head_dim) // head_dim),
        kv_heads=max(1, dim(shapes, f"{attention}.k_proj.weight", 0, usual.kv_heads * head_dim) // head_dim),
        head_dim=head_dim,
        mlp=dim(shapes, "model.layers.0.mlp.gate_proj.weight", 0, usual.mlp),
        vocab=dim(shapes, "model.embed_tokens.weight", 0, usual.vocab),
        norm="model.norm.weight" in shapes or layers == usual.layers,
    )


def _usual(level: int) -> int:
    mults = Flux2VAESize().channel_mult
    return mults[min(level, len(mults) - 1)]
