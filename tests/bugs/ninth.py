"""A ninth fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

import contextlib
from unittest.mock import patch

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation
from ninth_operations import NINTH_OPERATIONS
from ninth_steps import NINTH_STEPS

from refsd.models import flux2, qwen_image

# --- blocks ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _text_on_each_device():
    """Two devices hold half of the picture's tokens and all words: in single blocks the words' keys come twice."""
    ids, block = flux2.text_ids, flux2.single_stream_block
    words = [0]

    def counted(J):
        words[0] = J
        return ids(J)

    def twice(m, q, k, v, angle):
        q, k = m.rope(q, angle), m.rope(k, angle)
        k, v = (np.concatenate([t[:, : words[0]], t], axis=1) for t in (k, v))
        return m.attention(q, k, v).reshape(*q.shape[:2], -1)

    def single(*given, **named):
        with patch.object(flux2, "rotary_attention", twice):
            return block(*given, **named)

    with patch.object(flux2, "text_ids", counted), patch.object(flux2, "single_stream_block", single):
        yield


def _first_half_gates(a, right, x):
    """GELU(first half) times the second."""
    first, second = np.split(np.asarray(x), 2, axis=-1)
    return right(np.concatenate([second, first], axis=-1))


_TRANSFORMER = qwen_image.transformer


def _filled_up(m, tokens, ids, own, *rest, **named):
    """Tokens are filled up with zeros to a multiple of 8 devices; no mask hides those behind."""
    more = -tokens.shape[1] % 8
    tokens = np.pad(tokens, ((0, 0), (0, more), (0, 0)))
    return _TRANSFORMER(m, tokens, np.pad(ids, ((0, more), (0, 0))), own, *rest, **named)


# --- models ------------------------------------------------------------------------------------------------------


def _a_thousand_times(inputs):
    return {**inputs, "timesteps": 1000 * inputs["timesteps"]}


def _from_zero_to_one(inputs):
    return {**inputs, "x": (inputs["x"] + 1) / 2}


def _mask_of_the_first(inputs):
    """One mask for all items."""
    mask = inputs["context_mask"]
    return {**inputs, "context_mask": np.repeat(mask[:1], len(mask), axis=0)}


def _tanh_gelu(a, right, x, approximate="none"):
    return right(x, "tanh")


_TABLE = {
    "c-blk-01": (
        "block",
        "vllm-project/vllm-omni#7437",
        _model(
            Bug(patched=_text_on_each_device),
            "single_blocks|attention",
            "twice|text|words|first tokens|repeat|keys",
            "flux2-dev/flux2/first-step",
            "flux2-klein/flux2/between",
        ),
    ),
    "c-blk-02": (
        "block",
        "ooples/AiDotNet.Tensors#46, review",
        _model(
            wrong_operation(geglu=_first_half_gates),
            "geglu|ff",
            "gate|half|halves|exchang|swap",
            "sd15/unet/first-step",
            "sd15/unet/between",
        ),
    ),
    "c-blk-03": (
        "block",
        "vllm-project/vllm-omni#3142, review, in Qwen-Image",
        _model(
            Bug(patched=_patch(qwen_image, "transformer", _filled_up)),
            "attn|attention|img",
            "zeros|padd|more (tokens|keys|lies? behind)|filled|multiple of",
            "qwen-image/qwen-image/first-step",
        ),
    ),
    "c-mod-01": (
        "model",
        "modelscope/DiffSynth-Studio#1503, review",
        _model(
            Bug(inputs=_a_thousand_times),
            "time|timesteps",
            "1000|timesteps",
            "flux2-dev/flux2/first-step",
            "flux2-klein/flux2/between",
        ),
    ),
    "c-mod-02": (
        "model",
        "tdrussell/diffusion-pipe#545",
        _model(
            Bug(inputs=_from_zero_to_one),
            "conv1|conv_in|x",
            r"0\.\.1|0 to 1|half|0\.5|\[0, 1\]|range",
            "wan-vae/wan-vae-encoder/picture",
            "wan-vae/wan-vae-encoder/frames",
        ),
    ),
    "c-mod-03": (
        "model",
        "deepspeedai/DeepSpeed#8345, in Qwen3",
        _model(
            Bug(params=lambda params: {**params, "theta": 10000.0}),
            "rope|self_attn|attn",
            "theta|10000",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/padded",
        ),
    ),
    "c-mod-04": (
        "model",
        "bghira/SimpleTuner#2648",
        _model(
            Bug(inputs=_mask_of_the_first),
            "attn|attention|mask",
            "mask.*(item|batch|first)|first item|item 0",
            "qwen-image/qwen-image/masked",
        ),
    ),
    "c-te-01": (
        "model",
        "Blaizzy/mlx-embeddings#81, in CLIP-G",
        _model(
            wrong_operation(gelu=_tanh_gelu),
            "gelu|mlp",
            "tanh",
            "clip-g/clip_g/ended",
            "clip-g/clip_g/penultimate",
        ),
    ),
}
NINTH: dict[str, HeldOut] = {
    **NINTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **NINTH_STEPS,
}
