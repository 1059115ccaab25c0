"""Small modules of diffusers with random weights, and arguments of a call: batch 2, H != W, odd text lengths."""

from collections.abc import Callable
from typing import Any

import diffusers
import torch

from refsd.engines.torch.engine import channels_last as in_channels_last

Call = dict[str, Any]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def ids(length: int, axes: int) -> torch.Tensor:
    return torch.arange(length * axes).reshape(length, axes).remainder(7).float()


_UNET = {
    "sample_size": 8,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "cross_attention_dim": 40,
    "attention_head_dim": 2,
    "norm_num_groups": 8,
}


def sd15():
    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    module = diffusers.UNet2DConditionModel(**_UNET, down_block_types=down, up_block_types=up)
    call = {"sample": noise(2, 4, 12, 8), "timestep": times(801.0, 13.0), "encoder_hidden_states": noise(2, 7, 40)}
    return module, call


def sdxl():
    down, up = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
    module = diffusers.UNet2DConditionModel(
        **_UNET,
        down_block_types=down,
        up_block_types=up,
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=20 + 6 * 8,
    )
    added = {"text_embeds": noise(2, 20), "time_ids": times(64, 96, 0, 0, 64, 96).expand(2, 6)}
    return module, {
        "sample": noise(2, 4, 12, 8),
        "timestep": times(801.0, 13.0),
        "encoder_hidden_states": noise(2, 7, 40),
        "added_cond_kwargs": added,
    }


def flux():
    module = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=40,
        pooled_projection_dim=24,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    return module, {
        "hidden_states": noise(2, 35, 16),
        "encoder_hidden_states": noise(2, 7, 40),
        "pooled_projections": noise(2, 24),
        "timestep": times(0.8, 0.3),
        "guidance": times(3.5, 2.0),
        "img_ids": ids(35, 3),
        "txt_ids": torch.zeros(7, 3),
    }


def zimage():
    module = diffusers.ZImageTransformer2DModel(
        in_channels=16,
        dim=48,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=3,
        n_kv_heads=3,
        cap_feat_dim=40,
        axes_dims=[4, 6, 6],
        axes_lens=[128, 32, 32],
    )
    pictures, words = [noise(16, 1, 6, 10) for _ in range(2)], [noise(n, 40) for n in (7, 5)]
    return module, {"x": pictures, "t": times(0.8, 0.3), "cap_feats": words}


def qwen_image():
    module = diffusers.QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=40,
        axes_dims_rope=(4, 6, 6),
    )
    return module, {
        "hidden_states": noise(2, 24, 16),
        "encoder_hidden_states": noise(2, 7, 40),
        "encoder_hidden_states_mask": torch.arange(7) < torch.tensor([[7], [5]]),
        "timestep": times(0.8, 0.3),
        "img_shapes": [[(1, 4, 6)]] * 2,
    }


def qwen_image21():
    module = diffusers.QwenImage21Transformer2DModel(
        in_channels=16,
        out_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        context_in_dim=40,
        axes_dims_rope=(4, 6, 6),
    )
    return module, {
        "hidden_states": noise(2, 24, 16),
        "encoder_hidden_states": noise(2, 7, 40),
        "timestep": times(0.8, 0.3),
        "img_shapes": [[(1, 4, 6)]] * 2,
        "img_mask": (torch.arange(13) >= 7).expand(2, -1),
        "encoder_hidden_states_mask": torch.arange(7) < torch.tensor([[7], [5]]),
    }


def krea2():
    module = diffusers.Krea2Transformer2DModel(
        in_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=56,
        timestep_embed_dim=32,
        text_hidden_dim=48,
        num_text_layers=3,
        text_num_attention_heads=3,
        text_num_key_value_heads=3,
        text_intermediate_size=40,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    )
    return module, {
        "hidden_states": noise(2, 24, 16),
        "encoder_hidden_states": noise(2, 7, 3, 48),
        "timestep": times(0.8, 0.3),
        "position_ids": ids(31, 3),
        "encoder_attention_mask": torch.arange(7) < torch.tensor([[7], [5]]),
    }


def flux3():
    module = diffusers.Flux3Transformer2DModel(
        in_channels=16,
        cond_in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=40,
        timestep_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
    )
    return module, {
        "hidden_states": noise(2, 35, 16),
        "encoder_hidden_states": noise(2, 7, 40),
        "timestep": times(0.8, 0.3),
        "img_ids": ids(35, 4),
        "txt_ids": ids(7, 4),
    }


def cosmos():
    """The transformer of Cosmos and of Anima."""
    module = diffusers.CosmosTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=3,
        attention_head_dim=16,
        num_layers=2,
        text_embed_dim=40,
        adaln_lora_dim=12,
        max_size=(4, 16, 16),
        concat_padding_mask=False,  # True needs torchvision
    )
    return module, {
        "hidden_states": noise(2, 4, 3, 6, 10),
        "timestep": times(0.8, 0.3),
        "encoder_hidden_states": noise(2, 7, 40),
        "fps": 24,
    }


def ernie():
    module = diffusers.ErnieImageTransformer2DModel(
        hidden_size=48,
        num_attention_heads=3,
        num_layers=2,
        ffn_hidden_size=72,
        in_channels=8,
        out_channels=8,
        text_in_dim=40,
        rope_axes_dim=(4, 6, 6),
    )
    return module, {
        "hidden_states": noise(2, 8, 4, 6),
        "timestep": times(801.0, 13.0),
        "text_bth": noise(2, 7, 40),
        "text_lens": torch.tensor([7, 5]),
    }


def ltx2():
    module = diffusers.LTX2VideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=16,
        cross_attention_dim=32,
        audio_in_channels=8,
        audio_out_channels=8,
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
        num_layers=2,
        caption_channels=40,
    )
    return module, {
        "hidden_states": noise(2, 2 * 3 * 4, 8),
        "audio_hidden_states": noise(2, 5, 8),
        "encoder_hidden_states": noise(2, 7, 40),
        "audio_encoder_hidden_states": noise(2, 7, 40),
        "timestep": times(800.0, 300.0),
        "encoder_attention_mask": (torch.arange(7) < torch.tensor([[7], [5]])).long(),
        "audio_encoder_attention_mask": (torch.arange(7) < torch.tensor([[7], [5]])).long(),
        "num_frames": 2,
        "height": 3,
        "width": 4,
        "audio_num_frames": 5,
    }


def hunyuan_video15():
    module = diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=3,
        attention_head_dim=16,
        num_layers=2,
        num_refiner_layers=1,
        text_embed_dim=40,
        text_embed_2_dim=24,
        image_embed_dim=20,
        rope_axes_dim=(4, 6, 6),
    )
    return module, {
        "hidden_states": noise(2, 9, 2, 4, 6),
        "timestep": times(801.0, 13.0),
        "encoder_hidden_states": noise(2, 7, 40),
        "encoder_attention_mask": (torch.arange(7) < torch.tensor([[7], [5]])).long(),
        "encoder_hidden_states_2": noise(2, 5, 24),
        "encoder_attention_mask_2": (torch.arange(5) < torch.tensor([[5], [3]])).long(),
        "image_embeds": noise(2, 3, 20),
    }


def minimax_h3():
    module = diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=3,
        attention_head_dim=32,
        hidden_size=48,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=72,
        in_channels=4,
        audio_in_channels=6,
        text_dim=40,
        freq_dim=32,
        time_embed_hidden_dim=24,
        time_embed_dim=20,
        rope_freq_dim=4,
    )
    tags = torch.tensor([1] * 7 + [0] * 24 + [2] * 5)
    places = [torch.nonzero(tags == tag).flatten() for tag in (0, 1, 2)]
    return module, {
        "hidden_states": noise(2, 24, 16),
        "audio_hidden_states": noise(2, 5, 6),
        "encoder_hidden_states": noise(2, 7, 40),
        "timestep": times(0.8, 0.3),
        "timestep_indices": (tags == 2).long(),
        "token_tags": tags,
        "position_ids": ids(36, 3),
        "video_indices": places[0],
        "audio_indices": places[2],
        "text_indices": places[1],
    }


MODULES: dict[str, Callable[[], tuple[torch.nn.Module, Call]]] = {
    one.__name__: one
    for one in (
        *(sd15, sdxl, flux, zimage, qwen_image, qwen_image21, krea2, flux3, cosmos, ernie, ltx2, hunyuan_video15),
        minimax_h3,
    )
}


# Times that a class gives to its embedding in their own dtype.
_CAST = {"hunyuan_video15": {"timestep"}}


def tiny(name: str, dtype: torch.dtype = torch.float32, channels_last: bool = False, seed: int = 0):
    """Return a module in a dtype and a function that calls it. Times and positions stay in float32."""
    torch.manual_seed(seed)
    module, call = MODULES[name]()
    with torch.no_grad():
        for parameter in module.parameters():
            # Weights that a class sets to zero or one would hide what lies behind them.
            if parameter.unique().numel() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    module = module.eval().to(dtype)
    if channels_last:
        for parameter in module.parameters():
            parameter.data = in_channels_last(parameter.data)
    kept = {"timestep", "t", "img_ids", "txt_ids", "position_ids"} - _CAST.get(name, set())

    def cast(key: str, value: Any):
        if isinstance(value, dict):
            return {k: cast(k, v) for k, v in value.items()}
        if isinstance(value, list):
            return [cast(key, v) for v in value]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or key in kept:
            return value
        value = value.to(dtype)
        return in_channels_last(value) if channels_last else value

    call = {key: cast(key, value) for key, value in call.items()}

    def run():
        with torch.inference_mode():
            return module(**call)

    return module, run
