"""Each component in a folder of diffusers: where it stands, its names there, and the config.json that it has.

What the shapes do not tell is as the family's released models have it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from refsd.weights import (
    keymaps,
    keymaps_chroma,
    keymaps_controlnet,
    keymaps_flux2,
    keymaps_mmdit,
    keymaps_sdxl,
    keymaps_taesd,
    keymaps_text,
    keymaps_zimage,
)
from refsd.weights.architecture import Shape
from refsd.weights.diffusers_folder import clip_config, unet_config, vae_config
from refsd.weights.keymaps import Keymap

DIFFUSERS_FILE, TRANSFORMERS_FILE = "diffusion_pytorch_model.safetensors", "model.safetensors"

# The name of a tensor, and its shape -> how many rows each of the peer's parts of it has; None: equal ones.
Rows = Callable[[str, Shape], Sequence[int] | None]


class FolderPart(NamedTuple):
    """
    folder: in which the component stands; "": it is the folder
    file:   its weights
    keymap: size -> ours <-> the peer's names
    config: size -> config.json
    rows:   size -> how a tensor is split, where not equally
    drops:  beginnings of names that the peer's class has not
    """

    folder: str
    file: str
    keymap: Callable[[Any], Keymap]
    config: Callable[[Any], Mapping[str, Any]]
    rows: Callable[[Any], Rows] = lambda size: lambda name, shape: None
    drops: tuple[str, ...] = ()


def _unet_keymap(size) -> Keymap:
    attends = range(len(size.channel_mult)) if size.down else size.attention
    levels = [level for level in attends if not size.down or any(size.down[level])]
    return keymaps_sdxl.unet(len(size.channel_mult), size.res_blocks, levels)


def _controlnet_config(size) -> dict:
    same = ("act_fn", "attention_head_dim", "block_out_channels", "cross_attention_dim", "down_block_types")
    same += ("downsample_padding", "flip_sin_to_cos", "freq_shift", "in_channels", "layers_per_block")
    same += ("mid_block_scale_factor", "norm_eps", "norm_num_groups", "use_linear_projection")
    same += ("transformer_layers_per_block", "addition_embed_type", "addition_time_embed_dim")
    same += ("projection_class_embeddings_input_dim",)
    base = unet_config(size.unet)
    return {
        "_class_name": "ControlNetModel",
        **{field: base[field] for field in same if field in base},
        "conditioning_channels": size.hint_channels,
        "conditioning_embedding_out_channels": list(size.hint),
    }


def _flux_config(size) -> dict:
    return {
        "_class_name": "FluxTransformer2DModel",
        **_trunk(size),
        "out_channels": size.out_channels,
        "pooled_projection_dim": size.pooled,
        "guidance_embeds": size.guidance,
        "axes_dims_rope": [16, 56, 56],
    }


def _chroma_config(size) -> dict:
    return {
        "_class_name": "ChromaTransformer2DModel",
        **_trunk(size),
        "axes_dims_rope": [16, 56, 56],
        "approximator_num_channels": size.waves,
        "approximator_hidden_dim": size.width,
        "approximator_layers": size.layers,
    }


def _flux2_config(size) -> dict:
    return {
        "_class_name": "Flux2Transformer2DModel",
        **_trunk(size),
        "mlp_ratio": size.mlp / size.hidden,
        "guidance_embeds": size.guidance,
        "axes_dims_rope": [32, 32, 32, 32],
        "rope_theta": 2000,
    }


def _trunk(size) -> dict:
    return {
        "patch_size": 1,
        "in_channels": size.in_channels,
        "num_layers": size.double_blocks,
        "num_single_layers": size.single_blocks,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "joint_attention_dim": size.context_dim,
    }


def _single_linear1(size) -> Rows:
    """q, k and v, then what the MLP takes."""
    D = size.hidden

    def rows(name: str, shape: Shape):
        return (D, D, D, size.mlp) if name.startswith("single_blocks.") and ".linear1." in name else None

    return rows


def _mmdit_config(size) -> dict:
    return {
        "_class_name": "SD3Transformer2DModel",
        "sample_size": 128,
        "patch_size": size.patch,
        "in_channels": size.channels,
        "out_channels": size.channels,
        "num_layers": size.blocks,
        "attention_head_dim": 64,
        "num_attention_heads": size.hidden // 64,
        "joint_attention_dim": size.context_dim,
        "caption_projection_dim": size.hidden,
        "pooled_projection_dim": size.pooled,
        "pos_embed_max_size": size.table,
        "dual_attention_layers": list(size.dual),
        "qk_norm": "rms_norm" if size.qk_norm else None,
    }


def _zimage_config(size) -> dict:
    return {
        "_class_name": "ZImageTransformer2DModel",
        "all_patch_size": [2],
        "all_f_patch_size": [1],
        "in_channels": size.channels // 4,
        "dim": size.hidden,
        "n_layers": size.layers,
        "n_refiner_layers": size.noise_refiners,
        "n_heads": size.hidden // size.head_dim,
        "n_kv_heads": size.hidden // size.head_dim,
        "norm_eps": 1e-05,
        "qk_norm": True,
        "cap_feat_dim": size.context_dim,
        "rope_theta": 256.0,
        "t_scale": 1000.0,
        "axes_dims": [32, 48, 48],
        "axes_lens": [1536, 512, 512],
    }


def _flux2_vae_config(size) -> dict:
    levels = len(size.channel_mult)
    return {
        "_class_name": "AutoencoderKLFlux2",
        "act_fn": "silu",
        "batch_norm_eps": 0.0001,
        "batch_norm_momentum": 0.1,
        "block_out_channels": [mult * size.channels for mult in size.channel_mult],
        "decoder_block_out_channels": [mult * size.decoder_channels for mult in size.channel_mult],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "latent_channels": size.latent_channels,
        "layers_per_block": size.res_blocks,
        "norm_num_groups": 32,
        "patch_size": [2, 2],
        "sample_size": 1024,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
    }


def _tae_config(size) -> dict:
    return {
        "_class_name": "AutoencoderTiny",
        "act_fn": "relu",
        "in_channels": size.image_channels,
        "out_channels": size.image_channels,
        "latent_channels": size.latent_channels,
        "encoder_block_out_channels": [size.channels] * len(size.blocks),
        "decoder_block_out_channels": [size.channels] * len(size.blocks),
        "num_encoder_blocks": list(size.blocks),
        "num_decoder_blocks": list(size.blocks[::-1]),
        "scaling_factor": 1.0,
    }


def _t5_config(size) -> dict:
    return {
        "architectures": ["T5EncoderModel"],
        "model_type": "t5",
        "vocab_size": size.vocab,
        "d_model": size.hidden,
        "d_kv": size.head_dim,
        "d_ff": size.mlp,
        "num_layers": size.layers,
        "num_heads": size.heads,
        "relative_attention_num_buckets": size.buckets,
        "relative_attention_max_distance": 128,
        "dense_act_fn": "gelu_new",
        "feed_forward_proj": "gated-gelu",
        "is_gated_act": True,
        "layer_norm_epsilon": 1e-06,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _llm_config(size, architecture: str, model_type: str, eps: float, theta: float) -> dict:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "attention_bias": False,
        "sliding_window": None,
        "tie_word_embeddings": model_type == "qwen3",
    }


def _blocks(make: Callable[[int, int], Keymap]) -> Callable[[Any], Keymap]:
    return lambda size: make(size.double_blocks, size.single_blocks)


PARTS: dict[str, FolderPart] = {
    "unet": FolderPart("unet", DIFFUSERS_FILE, _unet_keymap, unet_config),
    "controlnet": FolderPart(
        "",
        DIFFUSERS_FILE,
        lambda size: keymaps_controlnet.controlnet(len(size.unet.channel_mult), size.unet.res_blocks),
        _controlnet_config,
    ),
    "vae": FolderPart(
        "vae", DIFFUSERS_FILE, lambda size: keymaps.vae(len(size.channel_mult), size.res_blocks), vae_config
    ),
    "flux2-vae": FolderPart(
        "vae",
        DIFFUSERS_FILE,
        lambda size: keymaps_flux2.vae(len(size.channel_mult), size.res_blocks),
        _flux2_vae_config,
    ),
    "tae": FolderPart("vae", DIFFUSERS_FILE, lambda size: keymaps_taesd.taesd(), _tae_config),
    "flux": FolderPart("transformer", DIFFUSERS_FILE, _blocks(keymaps.flux), _flux_config, _single_linear1),
    "chroma": FolderPart(
        "transformer",
        DIFFUSERS_FILE,
        lambda size: keymaps_chroma.chroma(size.double_blocks, size.single_blocks, size.layers),
        _chroma_config,
        _single_linear1,
    ),
    "flux2": FolderPart("transformer", DIFFUSERS_FILE, _blocks(keymaps_flux2.flux2), _flux2_config),
    "mmdit": FolderPart(
        "transformer", DIFFUSERS_FILE, lambda size: keymaps_mmdit.mmdit(size.blocks), _mmdit_config
    ),
    "zimage": FolderPart(
        "transformer",
        DIFFUSERS_FILE,
        lambda size: keymaps_zimage.zimage(size.layers, size.noise_refiners),
        _zimage_config,
    ),
    "clip": FolderPart(
        "text_encoder",
        TRANSFORMERS_FILE,
        lambda size: keymaps.clip(),
        lambda size: clip_config(size, "CLIPTextModel"),
        drops=("text_projection.",),
    ),
    "clip_g": FolderPart(
        "text_encoder_2",
        TRANSFORMERS_FILE,
        lambda size: keymaps.clip(),
        lambda size: clip_config(size, "CLIPTextModelWithProjection"),
    ),
    "t5": FolderPart("text_encoder_2", TRANSFORMERS_FILE, lambda size: keymaps_text.t5(), _t5_config),
    "qwen3": FolderPart(
        "text_encoder",
        TRANSFORMERS_FILE,
        lambda size: keymaps_text.qwen3(),
        lambda size: _llm_config(size, "Qwen3ForCausalLM", "qwen3", 1e-06, 1000000),
    ),
    "mistral": FolderPart(
        "text_encoder",
        TRANSFORMERS_FILE,
        lambda size: keymaps_flux2.mistral(),
        lambda size: _llm_config(size, "MistralForCausalLM", "mistral", 1e-05, 1000000000),
    ),
}
