"""An eighteenth fresh set, of models: from public trackers, drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from eighteenth_operations import EIGHTEENTH_OPERATIONS
from eighteenth_steps import EIGHTEENTH_STEPS
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug

from refsd.models import ltx2, qwen_image, vae_ltx2
from refsd.models.flux import Modulation
from refsd.models.vae_ltx2 import STEPS, conv, in_turn, unfolded
from refsd.module import block

# --- times -------------------------------------------------------------------------------------------------------


def _bf16(x):
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def _other_times(change):
    return Bug(inputs=lambda values: {**values, "timesteps": change(values["timesteps"])})


def _there_and_back(t):
    """Times 1000 in bfloat16, and divided by 1000 in it."""
    return _bf16(_bf16(1000 * np.asarray(t)) / np.float32(1000))


# --- transformers ------------------------------------------------------------------------------------------------


def _slices_of_the_first_half(m, name, vec):
    """The second half's slices are read from where the first half begins."""
    shift, scale, gate, *_ = np.split(m.linear(name, m.silu(vec)), 6, axis=-1)
    return Modulation(shift, scale, gate), Modulation(shift, scale, gate)


def _angles_in_float32(m, places, extent, channels, theta, heads):
    """The frequencies, too, are powers in float32."""
    L, axes = places.shape
    powers = np.float32(theta) ** np.linspace(0, 1, channels // (2 * axes), dtype=np.float32)
    share = places.astype(np.float32) / np.array(extent, np.float32)
    turns = (2 * share - 1)[:, None] * (powers * np.float32(np.pi / 2))[:, None]
    rest = np.zeros((L, channels // 2 - turns[0].size))
    return np.concatenate([rest, turns.reshape(L, -1)], axis=1).reshape(1, L, heads, -1)


# --- text encoders and autoencoders ------------------------------------------------------------------------------


def _without_mask(values):
    return {name: value for name, value in values.items() if name != "attention_mask"}


def _no_statistics(params):
    return {**params, "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}


@block
def upsample(m, x, outputs, edges, shortcuts):
    """Each step has a shortcut; as a step of one kernel it shows no sum."""
    frames, side = STEPS[m.shape("conv.conv.weight")[0] // outputs]
    h = unfolded(conv(m["conv"], x, edges), frames, side)
    return (h + in_turn(unfolded(x, frames, side), outputs)).astype(h.dtype)


_STATISTICS = vae_ltx2.statistics


def _statistics_not_found(m):
    mean, std = _STATISTICS(m)
    return np.zeros_like(mean), np.ones_like(std)


_TABLE = {
    "eh-mod-01": ("model", "huggingface/pytorch-image-models#2478, a class token among turned patches", None),
    "eh-mod-02": (
        "model",
        "modelscope/DiffSynth-Studio#562 and #1025",
        _model(
            _other_times(_bf16),
            "time|embed|mod",
            "bfloat16|bf16|rounded|520|528|time",
            "wan/wan/frames",
        ),
    ),
    "eh-mod-03": (
        "model",
        "kohya-ss/musubi-tuner#729",
        _model(
            _other_times(_there_and_back),
            "time|embed|mod",
            "bfloat16|bf16|rounded|few bits|precision",
            "qwen-image/qwen-image/masked",
        ),
    ),
    "eh-mod-04": (
        "model",
        "huggingface/diffusers#9405",
        _model(
            Bug(
                inputs=lambda values: {
                    **values,
                    "timesteps": (_there_and_back if values["timesteps"].max() <= 1 else _bf16)(
                        values["timesteps"]
                    ),
                }
            ),
            "time|embed|mod|vec",
            "bfloat16|bf16|rounded|few bits|precision",
            "flux-dev/flux/between",
            "sd3-medium/mmdit/between",
        ),
    ),
    "eh-te-01": (
        "model",
        "huggingface/diffusers#13585, its first",
        _model(
            Bug(inputs=_without_mask),
            "attn|Attention|attention|layer|bias",
            "mask|padding",
            "t5xxl/t5/padded",
        ),
    ),
    "eh-vae-01": (
        "model",
        "NVIDIA/DreamDojo#13",
        _model(
            Bug(params=_no_statistics),
            "mean|out|conv|latent|z",
            "statistic|mean|deviation|std|normalis|scale",
            "wan-vae/wan-vae-encoder/picture",
            "wan-vae/wan-vae-decoder/picture",
        ),
    ),
    "eh-vae-02": (
        "model",
        "james-see/ltx-video-mac#34, its second",
        _model(
            Bug(patched=_patch(vae_ltx2, "upsample", upsample)),
            "up_blocks|upsample|decoder",
            "shortcut|residual|around|added|skip",
            "ltx23-vae/ltx2-vae-decoder/frames",
        ),
    ),
    "eh-vae-03": (
        "model",
        "james-see/ltx-video-mac#47, its third",
        _model(
            Bug(patched=_patch(vae_ltx2, "statistics", _statistics_not_found)),
            "mean|out|conv|latent",
            "statistic|mean|deviation|std|normalis|scale",
            "ltx2-vae/ltx2-vae-encoder/picture",
        ),
    ),
    "eh-vae-04": ("model", "vladmandic/sdnext#5038, a tiny decoder of video", None),
    "eh-mod-05": (
        "model",
        "openvinotoolkit/openvino#37663, its second",
        _model(
            Bug(patched=_patch(qwen_image, "modulations", _slices_of_the_first_half)),
            "mod|mlp|block",
            "mlp|MLP|attention's|shift|modulation|first half|slice|gate|part 2 of the 2",
            "qwen-image/qwen-image/first-step",
            "qwen-image/qwen-image/masked",
        ),
    ),
    "eh-mod-06": (
        "model",
        "sgl-project/sglang#24660",
        _model(
            Bug(patched=_patch(ltx2, "angles", _angles_in_float32)),
            "rope|attn|attention|angle|block",
            "float32|frequenc|precision|rounded",
            "ltx2/ltx2/video",
            "ltx23/ltx2/video",
        ),
    ),
}
EIGHTEENTH: dict[str, HeldOut] = {
    **EIGHTEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **EIGHTEENTH_STEPS,
}
