"""The JSON files of a diffusers folder, which say what the shapes of its tensors do not."""

import json
from collections.abc import Mapping
from typing import Any

from refsd.weights.architecture import CLIPSize, UNetSize, VAESize, unet_depths
from refsd.weights.config import clip_act


def pipeline_files() -> dict[str, str]:
    """What makes a folder a pipeline of SD 1.5: file name -> JSON.

    No tokenizer, feature extractor or safety checker: a recipe has weights only.
    """
    return {"scheduler/scheduler_config.json": dumped(SCHEDULER), "model_index.json": dumped(MODEL_INDEX)}


def dumped(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=2) + "\n"


MODEL_INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "requires_safety_checker": False,
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "EulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": [None, None],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
SCHEDULER = {
    "_class_name": "EulerDiscreteScheduler",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "steps_offset": 1,
    "timestep_spacing": "linspace",
}


def unet_config(size: UNetSize) -> dict:
    """SD 1.x, 2.x and SDXL's. Each level's transformers are equally deep."""
    levels = range(len(size.channel_mult))
    depths = [max(level) for level in unet_depths(size)[0]]
    down = [f"{'CrossAttn' if depths[level] else ''}DownBlock2D" for level in levels]
    up = [f"{'CrossAttn' if depths[level] else ''}UpBlock2D" for level in reversed(levels)]
    more: dict[str, Any] = {}
    if size.linear:
        widths = [mult * size.channels for mult in size.channel_mult]
        more |= {"attention_head_dim": [max(1, wide // 64) for wide in widths], "use_linear_projection": True}
        more["transformer_layers_per_block"] = [depth or 1 for depth in depths]
    if size.label:
        more |= {"addition_embed_type": "text_time", "addition_time_embed_dim": 256}
        more["projection_class_embeddings_input_dim"] = size.label
    return {
        "_class_name": "UNet2DConditionModel",
        "act_fn": "silu",
        "attention_head_dim": 8,
        "block_out_channels": [mult * size.channels for mult in size.channel_mult],
        "center_input_sample": False,
        "cross_attention_dim": size.context_dim,
        "down_block_types": down,
        "downsample_padding": 1,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
        "in_channels": size.in_channels,
        "layers_per_block": size.res_blocks,
        "mid_block_scale_factor": 1,
        "norm_eps": 1e-05,
        "norm_num_groups": 32,
        "out_channels": size.out_channels,
        "sample_size": 64,
        "up_block_types": up,
    } | more


def vae_config(size: VAESize) -> dict:
    """SD's, and FLUX.1's, which has no quant convolutions; but for how its family scales the latents."""
    levels = len(size.channel_mult)
    return {
        "_class_name": "AutoencoderKL",
        "act_fn": "silu",
        "block_out_channels": [mult * size.channels for mult in size.channel_mult],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "in_channels": size.image_channels,
        "latent_channels": size.latent_channels,
        "layers_per_block": size.res_blocks,
        "norm_num_groups": 32,
        "out_channels": size.image_channels,
        "sample_size": 512,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
    } | ({} if size.quant_convs else {"use_quant_conv": False, "use_post_quant_conv": False})


def clip_config(size: CLIPSize, architecture: str = "CLIPTextModel") -> dict:
    """OpenAI's CLIP-L, and OpenCLIP's H and bigG, which have another GELU."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 49406,
        "eos_token_id": 49407,
        "hidden_act": clip_act(size),
        "hidden_size": size.hidden,
        "initializer_factor": 1.0,
        "initializer_range": 0.02,
        "intermediate_size": size.mlp,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": size.positions,
        "model_type": "clip_text_model",
        "num_attention_heads": max(1, size.hidden // 64),
        "num_hidden_layers": size.layers,
        "pad_token_id": 49407,
        "projection_dim": size.projection or size.hidden,
        "vocab_size": size.vocab,
    }
