"""A sixth fresh set, of blocks, models and stages: from public trackers, drawn before a look at the judge."""

import re
from unittest.mock import patch

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_answer, wrong_operation, wrong_parts
from sixth_operations import SIXTH_OPERATIONS
from sixth_steps import SIXTH_STEPS

from refsd.models import chroma, t5, vae
from refsd.models.vae.tiling import tiled_sdcpp
from refsd.numerics.tensor import stored
from refsd.stages.tiles import RULE as TILES

# --- blocks ------------------------------------------------------------------------------------------------------


def _mask_of_queries(mask, L):
    """The mask of the keys comes transposed: it hides whole rows of queries, and no key."""
    tokens = np.pad(np.asarray(mask) != 0, ((0, 0), (0, L)), constant_values=True)
    return np.broadcast_to(
        np.where(tokens[:, None, :, None], 0.0, -np.inf), (len(tokens), 1, tokens.shape[1], tokens.shape[1])
    )


def _sees_all(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """The mask of the later tokens is not passed on."""
    return right(q, k, v, scale, None, *rest, **named)


def _no_projection(m, x, num_groups):
    """The middle block's attention without its last projection."""
    N, C, H, W = x.shape
    h = m.group_norm("norm", x, num_groups, eps=1e-6)
    q, k, v = (m.conv2d(name, h).reshape(N, C, H * W).swapaxes(1, 2)[:, :, None] for name in "qkv")
    return m.add(x, m.attention(q, k, v)[:, :, 0].swapaxes(1, 2).reshape(N, C, H, W))


def _neighbours(a, right, x, angle):
    return a.rope(x, angle)


# --- models ------------------------------------------------------------------------------------------------------


def _one_added_again(weights):
    """The file's norms hold 1 + w already; the engine adds 1 once more."""
    return {
        name: stored(tensor.values() + np.float32(1)) if name.endswith("norm.weight") else tensor
        for name, tensor in weights.items()
    }


_T5_BLOCK = t5.t5_block


def _biased_first_layer():
    """The relative bias stands in layer 0 alone."""
    asked = []

    def wrong(m, x, bias, *rest):
        asked.append(m)
        return _T5_BLOCK(m, x, bias if len(asked) == 1 else np.zeros_like(bias), *rest)

    return patch.object(t5, "t5_block", wrong)


def _four_first_frames(case, inputs, y):
    """The first latent frame becomes four frames, as every other does."""
    (name, video), *_ = y.items()
    return {name: np.concatenate([video[:, :, :1]] * 3 + [video], axis=2)}


def _filters_in_bfloat16(weights):
    return {
        name: stored(t.values().astype(ml_dtypes.bfloat16).astype(np.float32)) if len(t.shape) == 4 else t
        for name, t in weights.items()
    }


class _KeysNotWritten:
    """The turned queries are written back, the keys are not."""

    def __init__(self):
        self.calls = 0

    def __call__(self, a, right, x, angle):
        self.calls += 1
        return right(x, angle) if self.calls % 2 else np.asarray(x)


def _other_eps_of_heads(a, right, x, weight, eps=1e-6):
    return right(x, weight, 1e-5 if np.ndim(x) == 4 else eps)


# --- guidance, schedules, prompts, tiles -------------------------------------------------------------------------


def _unshifted_timesteps(case, values, y):
    """Levels are shifted, the timesteps that the model is told are not."""
    a = case.params.get("shift", 3.0)
    if case.params["levels"] != "flow" or case.params["engine"] != "diffusers" or a == 1:
        return None
    s = np.asarray(y["sigmas"], np.float64)[:-1]
    return {"timesteps": 1000 * s / (a - (a - 1) * s)}


def _each_glyph_a_word(encode):
    """Every Chinese character is a word of its own, as BERT's normaliser has it."""
    return lambda text: encode(re.sub("([一-鿿])", r" \1 ", text))


def _last_column_left(engine):
    """The number of tiles of a row is rounded down: the last one is not decoded."""
    right = TILES.tiled(engine)

    def tiled(run, z, p):
        if p["wraps"] or engine != "sdcpp":
            return right(run, z, p)
        corners = []
        tiled_sdcpp(
            lambda t: corners.append(t) or np.zeros((*t.shape[:2], *(3 * n for n in t.shape[2:]))),
            np.arange(z.size, dtype=float).reshape(z.shape),
            tuple(p["size"]),
            p["overlap"],
            up=p["up"],
        )
        column = [int(t[0, 0, 0, 0]) % z.shape[3] for t in corners]
        asked = iter(column)

        def some(t):
            if next(asked) < max(column):
                return run(t)
            return np.zeros((*t.shape[:2], *(p["up"] * n for n in t.shape[2:])), t.dtype)

        return right(some, z, p)

    return tiled


_TABLE: dict[str, tuple] = {
    "z-blk-01": (
        "block",
        "leejet/stable-diffusion.cpp#1625",
        _model(
            Bug(patched=_patch(chroma, "pair_mask", _mask_of_queries)),
            "attn|attention|mask",
            "mask|NaN|hidden|quer",
            "chroma/chroma/masked",
        ),
    ),
    "z-blk-02": (
        "block",
        "sgl-project/sglang#14364",
        _model(
            wrong_operation(attention=_sees_all),
            "attn|attention",
            "causal|diagonal|mask",
            "sd15/clip/long",
            "sd15/clip/ended",
        ),
    ),
    "z-blk-03": (
        "block",
        "dome272/VQGAN-pytorch#23",
        _model(
            Bug(patched=_patch(vae, "attention", _no_projection)),
            "attn_1|mid",
            "proj_out.*(left out|skipped|missing)|skipped|left out",
            "sd15/vae-decoder/wide",
        ),
    ),
    "z-blk-04": (
        "block",
        "jmaczan/tiny-vllm#4",
        _model(
            wrong_operation(rope_halves=_neighbours),
            "rope|attn",
            "pair|neighbour|halves|interleaved|2i",
            "qwen3-4b/qwen3/whole",
            "rope/*",
        ),
    ),
    "z-mod-01": (
        "model",
        "utensils/mold#1078",
        _model(
            Bug(weights=_one_added_again),
            "norm",
            r"1 is added to the weights of norms",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "z-mod-02": (
        "model",
        "huggingface/transformers#10221",
        _model(
            Bug(patched=_biased_first_layer),
            "block|attention|Attention|bias",
            "bias|mask (left out|ignored)|positions?",
            "t5xxl/t5/long",
        ),
    ),
    "z-mod-03": (
        "model",
        "huggingface/diffusers#13994",
        _model(
            Bug(params=lambda p: {**p, "layers": [i + 1 for i in p["layers"]]} if p.get("layers") else p),
            "hidden|layer",
            "layers?|one (later|further)",
            "qwen3-vl-4b/qwen3_vl/layers",
        ),
    ),
    "z-mod-04": (
        "model",
        "huggingface/diffusers#12294",
        _model(
            Bug(inputs=lambda v: {**v, "context_mask": np.ones_like(v["context_mask"])}),
            "attn|attention|mask",
            "mask.*(left out|ignored|not used|missing)",
            "qwen-image/qwen-image/masked",
        ),
    ),
    "z-mod-05": (
        "model",
        "Blaizzy/mlx-video#38",
        _model(
            Bug(answer=_four_first_frames),
            "shape|out|video",
            "frame|first|shape",
            "wan-vae/wan-vae-decoder/frames",
        ),
    ),
    "z-mod-06": (
        "model",
        "VincentGourbin/ltx-video-swift-mlx#57, in a picture's autoencoder",
        _model(Bug(weights=_filters_in_bfloat16), "conv", "bfloat16|bf16", "sd15/vae-decoder/wide"),
    ),
    "z-mod-07": (
        "model",
        "kvcache-ai/ktransformers#1959, of the keys",
        _model(
            wrong_operation(rope_halves=_KeysNotWritten()),
            "rope|attn",
            r"\bk\b.*(not|left out|skipped|before|without)|rope.*(left out|not)|as it is|at the first position",
            "qwen3-4b/qwen3/whole",
        ),
    ),
    "z-mod-08": (
        "model",
        "Wenyueh/MinivLLM#82, of heads",
        _model(wrong_operation(rms_norm_apart=_other_eps_of_heads), "norm", "eps", "qwen3-4b/qwen3/quiet"),
    ),
    "z-cfg-01": (
        "pipeline",
        "vllm-project/vllm-omni#1634",
        wrong_parts("guidance/zimage*", "guided", "off|no guidance|below 1|cond|>", on=lambda scale: scale > 1),
    ),
    "z-sig-01": (
        "sampler",
        "huggingface/diffusers#14011",
        wrong_answer("sigmas/flow-*", "timesteps", "shift|before|unshifted", _unshifted_timesteps),
    ),
    "z-te-01": (
        "tokens",
        "huggingface/transformers#12648, of the slow one",
        wrong_parts(
            "clip_tokens/*foreign*", "ids", "word|character|glyph|cut|split|Chinese", encode=_each_glyph_a_word
        ),
    ),
    "z-tile-01": (
        "pipeline",
        "leejet/stable-diffusion.cpp#564",
        wrong_parts(
            "tiles/sdcpp*", "tiles|picture", "tile.*(left out|missing|last|not)|last", tiled=_last_column_left
        ),
    ),
}
SIXTH: dict[str, HeldOut] = {
    **SIXTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **SIXTH_STEPS,
}
