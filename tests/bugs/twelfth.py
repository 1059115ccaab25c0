"""A twelfth fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation
from twelfth_operations import TWELFTH_OPERATIONS
from twelfth_steps import TWELFTH_STEPS

from refsd.kernels.attention import boolean_mask
from refsd.models import ernie_image, qwen_image, zimage

# --- positions ---------------------------------------------------------------------------------------------------


def _one_angle_a_pair(m, x, angle):
    """A channel and the one half a head away are turned by the same angle, as everywhere else."""
    return m.rope_halves(x, angle)


_IDS = zimage.picture_ids


def _behind_the_longest(padded, tokens_high, tokens_wide):
    """Captions of a batch are padded to one length, and all pictures follow that."""
    return _IDS(np.full_like(padded, padded.max()), tokens_high, tokens_wide)


# --- masks -------------------------------------------------------------------------------------------------------


def _as_before_the_shards(context_mask, pictures):
    """Tokens are exchanged among two ranks: text, picture, text, picture; the mask stays text, then picture."""
    if context_mask is None:
        return None
    mask = np.pad(np.asarray(context_mask) != 0, ((0, 0), (0, pictures)), constant_values=True)
    J = mask.shape[1] - pictures
    text, picture = np.array_split(np.arange(J), 2), np.array_split(J + np.arange(pictures), 2)
    order = np.concatenate([text[0], picture[0], text[1], picture[1]])
    seen = np.zeros_like(mask)
    seen[:, order] = mask
    return boolean_mask(seen[:, None, None], np.float64)


def _without(name):
    return lambda inputs: {key: value for key, value in inputs.items() if key != name}


_TABLE = {
    "tw-vae-02": (
        "block",
        "Comfy-Org/ComfyUI#8930",
        _model(
            Bug(params=lambda params: {**params, "decoder_mirrors": False}),
            "conv",
            "mirror|reflect|zeros|padding|edge",
            "ltx2-vae/ltx2-vae-decoder/picture",
            "ltx2-vae/ltx2-vae-decoder/frames",
        ),
    ),
    "tw-mod-01": (
        "model",
        "baidu/ERNIE-Image#6",
        _model(
            Bug(patched=_patch(ernie_image, "turn", _one_angle_a_pair)),
            "attention|rope|norm_q|norm_k|turn",
            "angle|halves|half a head|pair|turn|neighbour",
            "ernie-image/ernie-image/whole",
            "ernie-image/ernie-image/masked",
        ),
    ),
    "tw-mod-02": (
        "model",
        "tdrussell/diffusion-pipe#505, of Qwen3's tokens",
        _model(
            Bug(inputs=_without("context_mask")),
            "cross_attn|attention|context|mask",
            "mask|padding",
            "anima-conditioner/anima-conditioner/whole",
            "anima-conditioner/anima-conditioner/masked",
        ),
    ),
    "tw-vis-01": (
        "model",
        "osaurus-ai/vmlx-swift#225, in Qwen3-VL's tower",
        _model(
            wrong_operation(
                rope_angles=lambda a, right, ids, axes_dim, theta: right(ids[..., ::-1], axes_dim, theta)
            ),
            "attn|rope|angle|blocks",
            "row|column|axes|axis|exchang|swap",
            "qwen3-vl-8b-vision/qwen3_vision/wide",
        ),
    ),
    "tw-mod-03": (
        "model",
        "sgl-project/sglang#29742",
        _model(
            Bug(patched=_patch(zimage, "picture_ids", _behind_the_longest)),
            "attention|angle|layers|noise_refiner|rope",
            "position|longest|length|caption",
            "zimage/zimage/whole",
            "zimage/zimage/masked",
        ),
    ),
    "tw-mod-04": (
        "model",
        "huggingface/diffusers#13756",
        _model(
            Bug(patched=_patch(qwen_image, "text_mask", _as_before_the_shards)),
            "attention|attn|mask",
            "mask|hidden|padding",
            "qwen-image/qwen-image/first-step",
            "qwen-image/qwen-image/masked",
        ),
    ),
}
TWELFTH: dict[str, HeldOut] = {
    **TWELFTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **TWELFTH_STEPS,
}
