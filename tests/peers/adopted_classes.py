"""Ten classes of diffusers 0.42.1 that have no page in refsd, tiny: batch 2, H != W, odd text lengths."""

from collections.abc import Callable

import diffusers
import torch
from tiny_modules import MODULES, Call, ids, noise, times


def _of_flux(kind, guidance: bool = False, **more):
    module = kind(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=40,
        axes_dims_rope=(4, 6, 6),
        **more,
    )
    return module, {
        "hidden_states": noise(2, 24, 16),
        "encoder_hidden_states": noise(2, 7, 40),
        "timestep": times(0.8, 0.3),
        "img_ids": ids(24, 3),
        "txt_ids": ids(7, 3),
    }


def longcat_image():
    return _of_flux(diffusers.LongCatImageTransformer2DModel, pooled_projection_dim=20)


def ovis_image():
    return _of_flux(diffusers.OvisImageTransformer2DModel, out_channels=16)


def ideogram4():
    module = diffusers.Ideogram4Transformer2DModel(
        in_channels=8,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        intermediate_size=72,
        adaln_dim=24,
        llm_features_dim=40,
        mrope_section=(4, 2, 2),
    )
    return module, {
        "hidden_states": noise(2, 31, 8),
        "timestep": times(0.8, 0.3),
        "encoder_hidden_states": noise(2, 31, 40),
        "position_ids": ids(31, 3).long().expand(2, 31, 3),
        "segment_ids": torch.zeros(2, 31, dtype=torch.long),
        "indicator": torch.where(torch.arange(31) < 7, 3, 2).expand(2, 31),
    }


def prx():
    module = diffusers.PRXTransformer2DModel(
        in_channels=4, context_in_dim=40, hidden_size=48, num_heads=3, depth=2, axes_dim=[8, 8]
    )
    return module, {
        "hidden_states": noise(2, 4, 8, 12),
        "timestep": times(0.8, 0.3),
        "encoder_hidden_states": noise(2, 7, 40),
        "attention_mask": torch.arange(7) < torch.tensor([[7], [5]]),
    }


def joyimage():
    module = diffusers.JoyImageEditTransformer3DModel(
        in_channels=4,
        hidden_size=48,
        num_attention_heads=3,
        text_dim=40,
        num_layers=2,
        rope_dim_list=[4, 6, 6],
    )
    return module, {
        "hidden_states": noise(2, 1, 4, 1, 8, 12),
        "timestep": times(801.0, 13.0),
        "encoder_hidden_states": noise(2, 7, 40),
    }


def glm_image():
    module = diffusers.GlmImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        text_embed_dim=40,
        time_embed_dim=24,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=11,
    )
    return module, {
        "hidden_states": noise(2, 4, 8, 12),
        "encoder_hidden_states": noise(2, 7, 40),
        "prior_token_id": torch.arange(48).reshape(2, 24) % 11,
        "prior_token_drop": torch.zeros(2, 24, dtype=torch.bool),
        "timestep": torch.tensor([800, 13]),
        "target_size": torch.tensor([[64.0, 96.0]]).expand(2, 2),
        "crop_coords": torch.tensor([[8.0, 0.0]]).expand(2, 2),
    }


def motif_video():
    module = diffusers.MotifVideoTransformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=3,
        attention_head_dim=16,
        num_layers=1,
        num_single_layers=1,
        text_embed_dim=40,
        rope_axes_dim=(4, 6, 6),
    )
    return module, {
        "hidden_states": noise(2, 9, 2, 8, 12),
        "timestep": times(801.0, 13.0),
        "encoder_hidden_states": noise(2, 7, 40),
    }


def kandinsky6():
    module = diffusers.Kandinsky6Transformer3DModel(
        in_visual_dim=4,
        out_visual_dim=4,
        in_text_dim=40,
        in_text_dim2=20,
        time_dim=24,
        model_dim=48,
        ff_dim=72,
        num_text_blocks=1,
        num_visual_blocks=2,
        axes_dims=(4, 6, 6),
        visual_cond=False,
    )
    return module, {
        "hidden_states": noise(2, 2, 8, 12, 4),
        "encoder_hidden_states": noise(2, 7, 40),
        "pooled_projections": noise(2, 20),
        "timestep": times(801.0, 13.0),
    }


_NEW = (longcat_image, ovis_image, ideogram4, prx, joyimage, glm_image, motif_video, kandinsky6)
CLASSES: dict[str, Callable[[], tuple[torch.nn.Module, Call]]] = {
    **{name: MODULES[name] for name in ("ernie", "ltx2", "minimax_h3", "cosmos")},
    **{one.__name__: one for one in _NEW},
}
