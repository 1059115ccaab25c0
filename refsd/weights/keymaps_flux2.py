"""Where other layouts keep the tensors of FLUX.2, its autoencoder and its Mistral: tables as in keymaps.py."""

import numpy as np

from refsd.golden.errors import BadInput
from refsd.golden.tensor import StoredTensor
from refsd.weights import keymaps
from refsd.weights.keymaps import CONCAT, SAME, SWAP, Keymap, Row, Rule
from refsd.weights.keymaps_text import QWEN3_GGUF_ENDS, QWEN3_GGUF_LAYER, QWEN3_HEADLESS

# FLUX.2, diffusers: ours, theirs (several: concatenated), rule.
FLUX2_ENDS = (
    ("img_in", ("x_embedder",), SAME),
    ("txt_in", ("context_embedder",), SAME),
    ("time_in.in_layer", ("time_guidance_embed.timestep_embedder.linear_1",), SAME),
    ("time_in.out_layer", ("time_guidance_embed.timestep_embedder.linear_2",), SAME),
    ("guidance_in.in_layer", ("time_guidance_embed.guidance_embedder.linear_1",), SAME),
    ("guidance_in.out_layer", ("time_guidance_embed.guidance_embedder.linear_2",), SAME),
    ("double_stream_modulation_img.lin", ("double_stream_modulation_img.linear",), SAME),
    ("double_stream_modulation_txt.lin", ("double_stream_modulation_txt.linear",), SAME),
    ("single_stream_modulation.lin", ("single_stream_modulation.linear",), SAME),
    ("final_layer.linear", ("proj_out",), SAME),
    ("final_layer.adaLN_modulation.1", ("norm_out.linear",), SWAP),
)
FLUX2_DOUBLE = (
    ("img_attn.qkv", ("attn.to_q", "attn.to_k", "attn.to_v"), CONCAT),
    ("txt_attn.qkv", ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), CONCAT),
    ("img_attn.norm.query_norm.scale", ("attn.norm_q.weight",), SAME),
    ("img_attn.norm.key_norm.scale", ("attn.norm_k.weight",), SAME),
    ("txt_attn.norm.query_norm.scale", ("attn.norm_added_q.weight",), SAME),
    ("txt_attn.norm.key_norm.scale", ("attn.norm_added_k.weight",), SAME),
    ("img_attn.proj", ("attn.to_out.0",), SAME),
    ("txt_attn.proj", ("attn.to_add_out",), SAME),
    ("img_mlp.0", ("ff.linear_in",), SAME),
    ("img_mlp.2", ("ff.linear_out",), SAME),
    ("txt_mlp.0", ("ff_context.linear_in",), SAME),
    ("txt_mlp.2", ("ff_context.linear_out",), SAME),
)
FLUX2_SINGLE = (
    ("linear1", ("attn.to_qkv_mlp_proj",), SAME),
    ("linear2", ("attn.to_out",), SAME),
    ("norm.query_norm.scale", ("attn.norm_q.weight",), SAME),
    ("norm.key_norm.scale", ("attn.norm_k.weight",), SAME),
)
VAE_BFL = (("quant_conv", "encoder.quant_conv"), ("post_quant_conv", "decoder.post_quant_conv"))
MISTRAL_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")


def flux2(double_blocks: int = 8, single_blocks: int = 48) -> Keymap:
    """FLUX.2 <-> diffusers' Flux2Transformer2DModel, which splits q, k, v in double blocks, and swaps as ever."""
    rows = [Row(*row) for row in FLUX2_ENDS]
    for table, n, ours, theirs in (
        (FLUX2_DOUBLE, double_blocks, "double_blocks", "transformer_blocks"),
        (FLUX2_SINGLE, single_blocks, "single_blocks", "single_transformer_blocks"),
    ):
        for i in range(n):
            for name, parts, rule in table:
                rows.append(Row(f"{ours}.{i}.{name}", tuple(f"{theirs}.{i}.{part}" for part in parts), rule))
    return Keymap(rows)


def vae(levels: int = 4, res_blocks: int = 2) -> Keymap:
    """FLUX.2's autoencoder <-> diffusers' AutoencoderKLFlux2: SD's table, and the statistics as they are named."""
    keymap = keymaps.vae(levels, res_blocks)
    keymap.rest_same = True
    return keymap


def vae_original() -> Keymap:
    """black-forest-labs' names: the two quant convolutions stand inside the encoder and the decoder."""
    return Keymap([Row(ours, (theirs,), SAME) for ours, theirs in VAE_BFL], rest_same=True)


def mistral() -> Keymap:
    """transformers' MistralForCausalLM; the language model in Mistral3ForConditionalGeneration, as transformers 5
    and as older files name it; MistralModel, which writes no `model.`. What is for pictures is read by none.
    """
    return Keymap(Row(f"model.{name}", (at + name,), SAME) for at in MISTRAL_PREFIXES for name in QWEN3_HEADLESS)


def mistral_gguf(layers: int = 40, head_dim: int = 128) -> Keymap:
    """llama.cpp's GGUF of Mistral (arch llama or mistral3), whose heads of q and k have pairs side by side.

    llama.cpp turns channels 2i and 2i + 1 of a head where transformers turns i and head_dim/2 + i; its converter
    reorders the rows so. stable-diffusion.cpp turns neighbours too, in whatever file: it needs the GGUF.
    Source: llama.cpp, conversion/llama.py, LlamaModel.permute.
    """
    rules = {"attn_q": neighbours(head_dim), "attn_k": neighbours(head_dim)}
    rows = [Row(a, (b,), SAME) for a, b in QWEN3_GGUF_ENDS]
    for i in range(layers):
        for a, b in QWEN3_GGUF_LAYER:
            if b not in ("attn_q_norm", "attn_k_norm"):
                rows.append(Row(f"model.layers.{i}.{a}", (f"blk.{i}.{b}",), rules.get(b, SAME)))
    return Keymap(rows)


def neighbours(head_dim: int) -> Rule:
    """Of each head, our channels i and head_dim/2 + i are their 2i and 2i + 1. Rows are whole blocks."""

    def reorder(tensor: StoredTensor, pairs: tuple[int, int]) -> StoredTensor:
        if tensor.shape[0] % head_dim:
            raise BadInput(f"{tensor.shape[0]} rows are no whole number of heads of {head_dim}")
        rows = np.arange(tensor.shape[0]).reshape(-1, *pairs).swapaxes(1, 2).ravel()
        data = tensor.data.reshape(tensor.shape[0], -1)[rows]
        return tensor._replace(data=data.reshape(tensor.data.shape))

    half = head_dim // 2
    return Rule(
        lambda shapes: shapes[0],
        lambda parts: reorder(parts[0], (half, 2)),
        lambda tensor, _: [reorder(tensor, (2, half))],
    )
