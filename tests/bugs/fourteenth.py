"""A fourteenth fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

from unittest.mock import patch

import numpy as np
from fourteenth_operations import FOURTEENTH_OPERATIONS
from fourteenth_steps import FOURTEENTH_STEPS
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation

from refsd.kernels.interpolate import resize_bilinear
from refsd.models import flux2, ltx2
from refsd.models.flux import EPS, qkv
from refsd.module import block
from refsd.numerics.tensor import stored

# --- blocks ------------------------------------------------------------------------------------------------------


def _bare(m, h, mod):
    """h, under the name of the sum that is lost."""
    return m.gated_add(np.zeros_like(h), h, np.ones_like(mod.gate))


@block
def _attention_without_residual(m, img, txt, img_mod, txt_mod, angle, num_heads=48, eps=EPS, own=None):
    """Where the chips form no ring, the attention's gated residual is lost: its bare projection goes on."""
    (img_attn, img_mlp), (txt_attn, txt_mlp) = img_mod, txt_mod
    img_qkv = qkv(m["img_attn"], m.adaptive_layer_norm(img, img_attn.shift, img_attn.scale, eps), num_heads, eps)
    txt_qkv = qkv(m["txt_attn"], m.adaptive_layer_norm(txt, txt_attn.shift, txt_attn.scale, eps), num_heads, eps)
    q, k, v = (np.concatenate([t, i], axis=1) for t, i in zip(txt_qkv, img_qkv, strict=True))
    txt_y, img_y = np.split(flux2.attention(m, q, k, v, angle, own), [txt.shape[1]], axis=1)
    img, txt = _bare(m, m.linear("img_attn.proj", img_y), img_attn), m.linear("txt_attn.proj", txt_y)
    txt = _bare(m, txt, txt_attn)
    h = flux2.mlp(m["img_mlp"], m.adaptive_layer_norm(img, img_mlp.shift, img_mlp.scale, eps))
    img = m.gated_add(img, h, img_mlp.gate)
    h = flux2.mlp(m["txt_mlp"], m.adaptive_layer_norm(txt, txt_mlp.shift, txt_mlp.scale, eps))
    return img, m.gated_add(txt, h, txt_mlp.gate)


def _unscaled_between(a, right, q, k, v, scale=None, *rest, **named):
    """Scores of the cross-attention are not divided by the root of the head's size."""
    return right(q, k, v, 1.0 if q.shape[1] != k.shape[1] else scale, *rest, **named)


_WITHIN, _ATTENTION, _TURN = ltx2.within, ltx2.attention, ltx2.turn


def _turn_unseen(m, *rest):
    """Turn without a tap, of which the case knows none."""
    return _TURN(m.arithmetic, *rest)


def _words_sought_by_turned_queries(m, h, stream, mod, eps, values_only):
    """The video's rotary angles turn its queries in the attention to the text, too, whose keys have none."""

    def attention(own, x, other, head_dim, angle=None, *rest):
        if angle is None and stream.name == ltx2.VIDEO:
            still = np.zeros((1, other.shape[1], *stream.angle.shape[2:]))
            with patch.object(ltx2, "turn", _turn_unseen):
                return _ATTENTION(own, x, other, head_dim, stream.angle, still, stream.split)
        return _ATTENTION(own, x, other, head_dim, angle, *rest)

    with patch.object(ltx2, "attention", attention):
        return _WITHIN(m, h, stream, mod, eps, values_only)


def _references_resized(inputs):
    """References are resized to the noisy latent's size, and so are their positions."""
    size = inputs["x"].shape[2:]
    return {
        name: np.asarray(resize_bilinear(np.ascontiguousarray(y), *size)) if name.startswith("reference") else y
        for name, y in inputs.items()
    }


def _times_in_thousandths(inputs):
    """The network multiplies by 1000; it is given the scheduler's timestep, 0 .. 1000."""
    return {**inputs, "timesteps": 1000 * inputs["timesteps"]}


# --- models ------------------------------------------------------------------------------------------------------

_MERGED = "q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight"


def _first_shard_in_both(weights):
    """Of merged projections each of two ranks loads the first one's shard."""
    own = dict(weights)
    for name in weights:
        if name.endswith(_MERGED):
            values = weights[name].values()
            own[name] = stored(np.concatenate([values[: len(values) // 2]] * 2))
    return own


_CLIP_MEAN = np.array([0.48145466, 0.4578275, 0.40821073]).reshape(3, 1, 1)
_CLIP_DEVIATION = np.array([0.26862954, 0.26130258, 0.27577711]).reshape(3, 1, 1)


def _normalised_as_for_clip(inputs):
    """Pixels are normalised by CLIP's means and deviations, not by 1/2 and 1/2."""
    x = inputs["x"]
    return {**inputs, "x": ((0.5 * x + 0.5 - _CLIP_MEAN) / _CLIP_DEVIATION).astype(x.dtype)}


_CHUNK = 16


def _positions_from_the_start(inputs):
    """A long prompt is run in chunks; each takes its positions from the start of the list."""
    L = inputs["positions"].shape[1]
    return {**inputs, "positions": inputs["positions"][:, np.arange(L) % _CHUNK]}


_TABLE = {
    "ft-blk-01": (
        "block",
        "tenstorrent/tt-metal#55364",
        _model(
            Bug(patched=_patch(flux2, "double_stream_block", _attention_without_residual)),
            "double_blocks|add|proj|attn|img|txt",
            r"residual|not added|\b(x|img|txt) (is )?(left out|missing|0)|h as it is|without (x|img|txt)|skip"
            r"|(only|bare) (h|proj)|h (alone|is the result)",
            "flux2-klein/flux2/between",
            "flux2-dev/flux2/first-step",
        ),
    ),
    "ft-blk-02": (
        "block",
        "Project-MONAI/GenerativeModels#146",
        _model(
            wrong_operation(attention=_unscaled_between),
            "attn2|attention",
            r"scale|sqrt|root|divided|unscaled",
            "sd15/unet/between",
            "sdxl/unet/between",
        ),
    ),
    "ft-blk-03": (
        "block",
        "utensils/mold#187",
        _model(
            Bug(patched=_patch(ltx2, "within", _words_sought_by_turned_queries)),
            "attn2|rope|attention",
            "rope|rotat|angle|turned|position",
            "ltx2/ltx2/video",
            "ltx23/ltx2/video",
        ),
    ),
    "ft-mod-01": (
        "model",
        "modelscope/DiffSynth-Studio#1503",
        _model(
            Bug(inputs=_times_in_thousandths),
            "time|vec|timesteps|waves",
            "1000|thousand|timesteps",
            "flux2-klein/flux2/between",
            "flux2-dev/flux2/first-step",
        ),
    ),
    "ft-mod-02": (
        "model",
        "invoke-ai/InvokeAI#9155",
        _model(
            Bug(inputs=_references_resized),
            "img_in|reference|input|tokens|rope|angle|img",
            "reference.*(size|resiz|bilinear|interpolat|tokens|positions|shape)|resiz|size of x",
            "qwen-image/qwen-image/edit",
            "qwen-image-edit-2511/qwen-image/edit",
        ),
    ),
    "ft-te-01": (
        "model",
        "vllm-project/vllm-gguf-plugin#103",
        _model(
            Bug(weights=_first_shard_in_both),
            "proj|qkv|attn|mlp|layers",
            "half|shard|first (rows|part|[0-9]+)|read again|repeat|copied|twice|rows.*(first|same)|rank",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/padded",
        ),
    ),
    "ft-te-02": (
        "model",
        "apple/coreai-models#105",
        _model(
            Bug(inputs=_normalised_as_for_clip),
            r"patch_embed|\bx\b|input|pixels",
            "CLIP|mean|deviation|normalis|range of (the )?pixels|pixels",
            "qwen3-vl-8b-vision/qwen3_vision/wide",
            "qwen3-vl-8b-vision/qwen3_vision/quiet",
        ),
    ),
    "ft-te-03": (
        "model",
        "Blaizzy/mlx-vlm#1621",
        _model(
            Bug(inputs=_positions_from_the_start),
            "rope|angle|attn|attention|positions|layers",
            r"positions?.*(start|again|first|repeat|chunk|\b16\b|begin|modulo)|chunk",
            "qwen3-vl-4b/qwen3_vl/image",
            "qwen3-vl-4b/qwen3_vl/pictures",
            "qwen2.5-vl-7b/qwen2_5_vl/image",
        ),
    ),
}
FOURTEENTH: dict[str, HeldOut] = {
    **FOURTEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **FOURTEENTH_STEPS,
}
