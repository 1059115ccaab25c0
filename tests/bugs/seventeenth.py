"""A seventeenth fresh set, of models: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation
from seventeenth_operations import SEVENTEENTH_OPERATIONS
from seventeenth_steps import SEVENTEENTH_STEPS

from refsd.models import ideogram4, ltx2, vae_wan

# --- places ------------------------------------------------------------------------------------------------------

_POSITIONS, _PICTURE = ltx2.positions, ideogram4.positions


def _picture_at_time_0(there, H, W):
    """A picture's pixels have the first word's time."""
    places = _PICTURE(there, H, W).copy()
    places[:, there.shape[1] :, 0] = 0
    return places


def _places_in_float16(F, H, W, fps):
    return _POSITIONS(F, H, W, fps).astype(np.float16).astype(np.float64)


_ANGLES = ltx2.angles


def _own_frames_at_24(m, places, extent, *rest):
    """What a video's frames are to each other counts 24 a second, what they are to the sound as many as asked."""
    if places.shape[1] == 3:
        places = places * [50 / 24, 1, 1]
    return _ANGLES(m, places, extent, *rest)


# --- text encoders -----------------------------------------------------------------------------------------------

_ASKED = {}


def _noted(values):
    _ASKED.clear()
    _ASKED.update(values)
    return values


def _causal_by_time(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """A token sees what is not later by the time of its position: an image's patches all see each other."""
    time = np.broadcast_to(_ASKED["positions"][..., 0], (len(q), q.shape[1]))
    hidden = time[:, None, :] > time[:, :, None]
    if "attention_mask" in _ASKED:
        hidden = hidden | (_ASKED["attention_mask"] == 0)[:, None]
    return right(q, k, v, scale, np.where(hidden, -np.inf, 0)[:, None], None, sinks)


def _without_biases(weights):
    """Those of queries, keys and values are not loaded."""
    return {
        name: weight
        for name, weight in weights.items()
        if not name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))
    }


# --- autoencoders ------------------------------------------------------------------------------------------------

_DECODER = vae_wan.decoder


def _each_frame_the_first(m, z):
    """Each module has a copy of the cache, so that every latent frame is the first to it."""
    return np.concatenate([_DECODER(m, z[:, :, i : i + 1]) for i in range(z.shape[2])], axis=2)


_TABLE = {
    "sn-mod-01": (
        "model",
        "SceneWorks/SceneWorks#775, its fourth",
        _model(
            Bug(patched=_patch(ideogram4, "positions", _picture_at_time_0)),
            "rope|attn|attention|layers|angle",
            "position|place|time|offset|picture|image|from 0|start",
            "lone/ideogram4/ideogram4/whole",
            "lone/ideogram4/ideogram4/quiet",
        ),
    ),
    "sn-mod-02": (
        "model",
        "openvinotoolkit/openvino#35964 and #36358",
        _model(
            Bug(patched=_patch(ltx2, "positions", _places_in_float16)),
            "rope|attn|attention|angle|block",
            "float16|f16|half|rounded|precision|few bits",
            "ltx2/ltx2/video",
            "ltx23/ltx2/video",
        ),
    ),
    "sn-mod-03": (
        "model",
        "tenstorrent/tt-metal#53633, what its review finds",
        _model(
            Bug(patched=_patch(ltx2, "angles", _own_frames_at_24)),
            "rope|attn|attention|angle|block",
            r"fps|24|frames? (per|a) second|second|rate|2\.08|time",
            "ltx23/ltx2/video",
        ),
    ),
    "sn-te-01": (
        "model",
        "ggml-org/llama.cpp#15474",
        _model(
            wrong_operation(attention=_causal_by_time)._replace(inputs=_noted),
            "attn|attention|layers|hidden",
            "causal|later|image|picture|see each other|both ways|all (keys|patches)|mask",
            "qwen2.5-vl-7b/qwen2_5_vl/image",
            "qwen3-vl-4b/qwen3_vl/pictures",
        ),
    ),
    "sn-te-02": (
        "model",
        "NVIDIA/TensorRT-Model-Connect#177",
        _model(
            wrong_operation(gelu=lambda a, right, x, approximate="none": a.silu(x)),
            "mlp|gate|gelu|layers",
            "silu|SiLU|sigmoid",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "sn-te-03": (
        "model",
        "paiml/aprender#2252, its first",
        _model(
            wrong_operation(rope_halves=lambda a, right, x, angle: a.rope(x, angle)),
            "rope|attn|layers",
            "pair|neighbour|interleav|halves|adjacent",
            "qwen2.5-vl-7b/qwen2_5_vl/padded",
            "qwen2.5-vl-7b/qwen2_5_vl/quiet",
        ),
    ),
    "sn-te-04": (
        "model",
        "paiml/aprender#2252, its second",
        _model(
            Bug(weights=_without_biases),
            "q_proj|k_proj|v_proj|attn|linear",
            "bias",
            "qwen2.5-vl-7b/qwen2_5_vl/padded",
            "qwen2.5-vl-7b/qwen2_5_vl/quiet",
        ),
    ),
    "sn-vae-02": (
        "model",
        "vladmandic/sdnext#4534",
        _model(
            Bug(patched=_patch(vae_wan, "decoder", _each_frame_the_first)),
            "out|shape|frames|upsample|time_conv",
            "(each|every) (latent )?frame|as the first|cache|time_conv|not doubled|by itself",
            "wan-vae/wan-vae-decoder/frames",
            "wan22-vae/wan22-vae-decoder/frames",
        ),
    ),
    "sn-te-05": ("model", "huggingface/candle#3745, Gemma 3", None),
    "sn-mod-04": ("model", "Comfy-Org/ComfyUI#8769, a given frame that is not the first", None),
    "sn-mod-05": (
        "model",
        "invoke-ai/InvokeAI#8923, without a case when it was drawn",
        _model(
            Bug(inputs=lambda v: {**v, "reference": v["reference_2"], "reference_2": v["reference"]}),
            "img_in|out|rope|reference",
            "reference.*(exchang|order|swap|for|read)|exchang|other order",
            "flux2-klein/flux2/references",
        ),
    ),
}
SEVENTEENTH: dict[str, HeldOut] = {
    **SEVENTEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **SEVENTEENTH_STEPS,
}
