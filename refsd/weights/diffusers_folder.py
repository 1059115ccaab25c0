"""The JSON files of a diffusers folder, which say what the shapes of its tensors do not."""

import json
from collections.abc import Mapping

from refsd.weights.architecture import Shapes
from refsd.weights.sizes import clip_size, unet_size, vae_size


def sd15_configs(shapes: Mapping[str, Shapes]) -> dict[str, str]:
    """File name in the folder -> JSON, for components of the given shapes; everything else as SD 1.5 has it.

    No tokenizer, feature extractor or safety checker: a recipe has weights only.
    """
    configs = {
        "unet/config.json": _unet(shapes["unet"]),
        "vae/config.json": _vae(shapes["vae"]),
        "text_encoder/config.json": _clip(shapes["clip"]),
        "scheduler/scheduler_config.json": SCHEDULER,
        "model_index.json": MODEL_INDEX,
    }
    return {file: json.dumps(config, indent=2) + "\n" for file, config in configs.items()}


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


def _unet(shapes: Shapes) -> dict:
    size = unet_size(shapes)
    levels = range(len(size.channel_mult))
    down = [f"{'CrossAttn' if level in size.attention else ''}DownBlock2D" for level in levels]
    up = [f"{'CrossAttn' if level in size.attention else ''}UpBlock2D" for level in reversed(levels)]
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
    }


def _vae(shapes: Shapes) -> dict:
    size = vae_size(shapes)
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
        "scaling_factor": 0.18215,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
    }


def _clip(shapes: Shapes) -> dict:
    size = clip_size(shapes)
    return {
        "architectures": ["CLIPTextModel"],
        "attention_dropout": 0.0,
        "bos_token_id": 49406,
        "eos_token_id": 49407,
        "hidden_act": "quick_gelu",
        "hidden_size": size.hidden,
        "initializer_factor": 1.0,
        "initializer_range": 0.02,
        "intermediate_size": size.mlp,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": size.positions,
        "model_type": "clip_text_model",
        "num_attention_heads": size.hidden // 64,
        "num_hidden_layers": size.layers,
        "pad_token_id": 49407,
        "projection_dim": size.hidden,
        "vocab_size": size.vocab,
    }
