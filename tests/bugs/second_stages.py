"""A second fresh set, from prompts and files to pictures and steps: from public trackers on 2026-11-23."""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_files import _right_scale, alpha_of, modules_of, product_of
from injected_steps import sampled
from injection import wrong_answer, wrong_parts

from refsd.samplers.levels import SD_LEVELS, FlowLevels
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import flow_uniform, flux_mu
from refsd.stages.control import RULE as CONTROL
from refsd.stages.sigmas import RULE as SIGMAS
from refsd.tokenizers.chunking import Chunk

# --- samplers ----------------------------------------------------------------------------------------------------


def _unpacked_tokens(levels, tokens, steps):
    """mu from the latent's pixels, of which a token holds four."""
    return flux_mu(4 * tokens) if levels == "flux" else SIGMAS.mu(levels, tokens, steps)


def _not_stretched(params, card, levels):
    right = SIGMAS.spacing(params, card, levels)
    return (lambda n: flow_uniform(n, levels.shift)) if params["schedule"] == "flow_terminal" else right


def _fixed_shift(shift, multiplier):
    """Sigmas are shifted by 1.15 at every size."""
    return FlowLevels(1.15 if multiplier == 1.0 else shift, multiplier)


def _at_least(case, values, y):
    """gamma = max(churn / steps, sqrt(2) - 1) for min."""
    p = case.params
    if p["kind"] != "churn":
        return None
    sigmas = np.asarray(SCHEDULES["karras"](p["steps"], SD_LEVELS))[:-1]
    inside = (sigmas >= p.get("s_tmin", 0.0)) & (sigmas <= (p.get("s_tmax") or math.inf))
    start = sigmas * (1 + inside * max(p["s_churn"] / p["steps"], math.sqrt(2) - 1))
    return {"start": start, "deviation": p.get("s_noise", 1.0) * np.sqrt(np.maximum(start**2 - sigmas**2, 0))}


def _timesteps_as_given(case, values, y):
    """Timesteps are not shifted together with the sigmas."""
    a = case.params.get("shift", 3.0)
    if case.params["levels"] != "flow" or a == 1 or case.params["engine"] != "diffusers":
        return None
    s = np.asarray(y["sigmas"], np.float64)[:-1]
    return {"timesteps": 1000 * s / (a - (a - 1) * s)}


def _middle_of_the_last_step(model, x, sigmas, draws, case):
    """DPM-Solver-2 that takes a middle in the step to 0, too: an eighth of sigma, by cube roots."""
    for sigma, to in itertools.pairwise(sigmas):
        d = (x - model(x, float(sigma))) / x.dtype.type(sigma)
        middle = math.sqrt(sigma * to) if to else sigma / 8
        x_2 = x + d * x.dtype.type(middle - sigma)
        d_2 = (x_2 - model(x_2, float(middle))) / x.dtype.type(middle)
        x = x + d_2 * x.dtype.type(to - sigma)
    return x


# --- guidance, noise, tiles, pictures ----------------------------------------------------------------------------


def _one_factor(cond, uncond, scale):
    """CFG-Zero*: one factor for the whole batch."""
    a, b = cond.astype(np.float64), uncond.astype(np.float64)
    near = (a * b).sum() / ((b * b).sum() + 1e-8) * b
    return (near + scale * (a - near)).astype(cond.dtype)


def _others_share_a_seed(seed, index):
    return seed if index == 0 else seed + 1


def _noise_normalised(case, values, y):
    """A FLUX.2 picture's noise goes through the autoencoder's batch norm."""
    if "channel_variance" not in values:
        return None
    deviation = np.sqrt(values["channel_variance"] + 1e-4)[:, None, None]
    return {"start": y["start"] + case.params["sigma"] * y["noise"] * (1 / deviation - 1)}


def _overlap_twice(case, values, y):
    """The last tile of a row or column is moved back to fit; the weights are those of the nominal overlap."""
    p, z = case.params, values["z"]
    if p["engine"] != "sdcpp" or p.get("wraps"):
        return None
    up = p.get("up", 3)
    H, W = z.shape[2:]
    sides = []
    for n, size in ((H, p["size"][0]), (W, p["size"][1])):
        size = min(size, n)
        step = size - int(size * p["overlap"])
        starts = [*range(0, n - size, step), n - size]
        sides.append((n, size, int(size * p["overlap"]), starts))
    out = np.zeros((*z.shape[:2], H * up, W * up))

    def ramp(n, size, share, start):
        i = np.arange(size * up)
        t = np.ones(size * up)
        if share and start > 0:
            t = np.minimum(t, i / (share * up))
        if share and start < n - size:
            t = np.minimum(t, (size * up - i) / (share * up))
        return t**3 * (t * (6 * t - 15) + 10)

    (_, h, *_), (_, w, *_) = sides
    for top in sides[0][3]:
        for left in sides[1][3]:
            tile = z[:, :, top : top + h, left : left + w]
            decoded = np.kron(tile - tile.mean(axis=(2, 3), keepdims=True), np.ones((1, 1, up, up)))
            weight = ramp(*sides[0][:3], top)[:, None] * ramp(*sides[1][:3], left)
            out[:, :, top * up : (top + h) * up, left * up : (left + w) * up] += decoded * weight
    return {"picture": out}


def _thirteen_layers(mode, count, scale):
    """Soft weights fall towards the beginning from the 13th layer on, whatever the number of layers."""
    if mode != "soft":
        return CONTROL.layers(mode, count, scale)
    return scale * 0.825 ** (12.0 - np.arange(count))


def _pooled_in_reverse(right):
    """The prompt's pooled text stands where the negative prompt's belongs, and the other way round."""
    return {
        name: one._replace(pooled=None if one.pooled is None else one.pooled[::-1]) for name, one in right.items()
    }


# --- prompts -----------------------------------------------------------------------------------------------------


def _without_an_end(engine):
    """A prompt that is too long is cut after 77 ids; the last of them is a word's, not the end's."""

    def chunk(tokenizer, parts):
        ids = [one for part in parts if part is not None for one in tokenizer.encode(part[0])]
        weights = np.ones(77, np.float32)
        if len(ids) <= 75:
            raise AssertionError("a long prompt was expected")
        return [Chunk(np.array([49406, *ids[:76]], np.int64), weights)]

    return chunk


def _colon_is_a_weight(engine):
    """A word's ":1.3" before a comma or the end is its weight, with no bracket around it."""
    from refsd.stages.clip_tokens import RULE

    right = RULE.parse(engine)
    return lambda prompt: right(", ".join(_bracketed(one) for one in prompt.split(", ")))


def _bracketed(one):
    return f"({one})" if ":" in one and "(" not in one else one


def _escapes_kept(engine):
    """The backslash before a bracket stays in the text."""
    from refsd.stages.clip_tokens import RULE

    right = RULE.parse(engine)
    return lambda prompt: right(prompt.replace("\\(", "\\\\\\(").replace("\\)", "\\\\\\)"))


def _lines_unknown(tokenizer, text):
    """A line's end is no white space but an unknown character."""
    pieces = text.split("\n")
    if len(pieces) == 1:
        return tokenizer.encode(text)
    return [
        one
        for i, piece in enumerate(pieces)
        for one in ([2] if i else []) + (tokenizer.encode(piece) if piece else [])
    ]


def _zeros_behind_the_end(case, values, y):
    """Both encoders have the second's tokenizer, whose padding is id 0."""
    ids = np.array(y["ids"])
    for row in ids:
        row[int(np.argmax(row == 49407)) + 1 :] = 0
    return {"ids": ids}


# --- files -------------------------------------------------------------------------------------------------------


def _dora(change):
    """change: weight, delta, magnitude, alpha over rank, strength -> merged"""

    def merged(case, values, y):
        parts = next(iter(modules_of(values).values()))
        if "magnitude" not in parts or "down" not in parts or case.params.get("rule") == "comfyui":
            return None
        scale, product = _right_scale(parts, {}), product_of(parts)
        told = values["weight"], product, parts["magnitude"].reshape(-1, 1), scale, case.params.get("strength", 1.0)
        return {"merged": change(*told)}

    return merged


def _length(x):
    return np.sqrt((x**2).sum(axis=1, keepdims=True))


def _length_of_the_weight(weight, product, magnitude, scale, m):
    """magnitude (W + delta) / |W| for magnitude (W + delta) / |W + delta|."""
    return weight + m * (magnitude * (weight + scale * product) / _length(weight) - weight)


def _scale_outside(weight, product, magnitude, scale, m):
    """W + m alpha / rank (DoRA(W + B A) - W)"""
    whole = weight + product
    return weight + m * scale * (magnitude * whole / _length(whole) - weight)


def _without_rank(case, values, y):
    """alpha B A for alpha / rank B A."""
    modules = modules_of(values)
    if any("down" not in parts or "magnitude" in parts for parts in modules.values()) or len(modules) > 1:
        return None
    (parts,) = modules.values()
    times = len(parts["down"]) if "alpha" in parts else 1
    assert alpha_of(parts)
    return {"merged": values["weight"] + (y["merged"] - values["weight"]) * times}


def _scales_grouped(case, values, y):
    """The rows of a fused qkv are put in order while it is loaded, its rows' scales are not."""
    scale = values.get("scale")
    if scale is None or scale.ndim != 2 or scale.shape[1] != 1 or len(scale) % 3:
        return None
    other = scale.reshape(-1, 3).T.reshape(-1, 1)
    return {
        "weight": y["weight"]
        / np.repeat(scale, len(y["weight"]) // len(scale), axis=0)
        * np.repeat(other, len(y["weight"]) // len(scale), axis=0)
    }


_TABLE: dict[str, tuple] = {
    "s-sig-01": (
        "sampler",
        "sgl-project/sglang#21041",
        wrong_parts("sigmas/flux-*", "sigmas", r"token|12288|times 4|\b4\b|pixels", mu=_unpacked_tokens),
    ),
    "s-sig-02": (
        "sampler",
        "mflux-community/mflux#362",
        wrong_parts("sigmas/qwen-image*", "sigmas", "terminal|stretch|flow_uniform", spacing=_not_stretched),
    ),
    "s-sig-03": (
        "sampler",
        "mflux-community/mflux#465",
        wrong_parts("sigmas/flux*", "sigmas", r"1\.15|fixed|whatever the size|static", flow=_fixed_shift),
    ),
    "s-sig-04": (
        "sampler",
        "huggingface/diffusers#14013",
        wrong_answer("sigmas/flow-*", "timesteps", "shift", _timesteps_as_given),
    ),
    "s-smp-01": (
        "sampler",
        "Comfy-Org/ComfyUI#13820",
        wrong_answer("step_noise/churn*", "start", r"max|sqrt\(2\)|0\.414|limit|largest|at least", _at_least),
    ),
    "s-smp-02": (
        "sampler",
        "AUTOMATIC1111/stable-diffusion-webui#1435",
        sampled(("dpm2/*",), "x|latent|calls", "last step|to 0|end|Euler", _middle_of_the_last_step),
    ),
    "s-i2i-01": (
        "pipeline",
        "invoke-ai/InvokeAI#9556",
        wrong_answer("noising/*", "start", "deviation|normalised", _noise_normalised),
    ),
    "s-cfg-01": (
        "pipeline",
        "huggingface/diffusers#11205, review of CFG-Zero*",
        wrong_parts("guidance/zero-star", "guided", "batch|all items|one factor|items", zero_star=_one_factor),
    ),
    "s-rng-01": (
        "pipeline",
        "invoke-ai/InvokeAI#2931",
        wrong_parts(
            "noising/*", "noise", "seed|second|later|same|item 2 is that of item 1", seed=_others_share_a_seed
        ),
    ),
    "s-vae-01": (
        "pipeline",
        "leejet/stable-diffusion.cpp#484",
        wrong_answer(
            "tiles/sdcpp*", "picture|tiles", r"overlap|weight|add up|last tile|nominal|moved|twice", _overlap_twice
        ),
    ),
    "s-vae-02": (
        "pipeline",
        "black-forest-labs/flux#402; utensils/mold#1154",
        wrong_parts("pixels/*", "shown", r"0 to 1|0\.\.1", shown=lambda pixels, range_: pixels / 255),
    ),
    "s-cn-01": (
        "pipeline",
        "Kosinkadink/ComfyUI-Advanced-ControlNet#199",
        wrong_parts("control/*soft*", "added", r"\b1[23]\b|layers|number of", layers=_thirteen_layers),
    ),
    "s-xl-01": (
        "pipeline",
        "Nerogar/OneTrainer#775",
        wrong_parts(
            "conditioning/sdxl*", r"\by\b", "order|swap|reverse|other|items|exchang", encoders=_pooled_in_reverse
        ),
    ),
    "s-te-01": (
        "tokens",
        "huggingface/diffusers#1165",
        wrong_parts("clip_tokens/diffusers-long", "ids", "EOS|end", chunk=_without_an_end),
    ),
    "s-te-02": (
        "tokens",
        "AUTOMATIC1111/stable-diffusion-webui#15767: a weight outside of brackets",
        wrong_parts("clip_tokens/*colon", "ids|weights", "outside", parse=_colon_is_a_weight),
    ),
    "s-te-03": (
        "tokens",
        "vladmandic/sdnext#1071",
        wrong_parts("clip_tokens/*escaped", "ids", "backslash|escape", parse=_escapes_kept),
    ),
    "s-te-04": (
        "tokens",
        "huggingface/swift-transformers#387",
        wrong_parts("language_tokens/flux-t5", "ids", "<unk>|line|white|unknown", encode=_lines_unknown),
    ),
    "s-te-05": (
        "tokens",
        "openvinotoolkit/openvino.genai#1125",
        wrong_answer("clip_tokens/*", "ids", "pad", _zeros_behind_the_end),
    ),
    "s-lora-01": (
        "loader",
        "Comfy-Org/ComfyUI#15458",
        wrong_answer(
            "adapter/dora*",
            "merged",
            "norm of the (base|weight)|without the delta|original|rule is comfyui",
            _dora(_length_of_the_weight),
        ),
    ),
    "s-lora-02": (
        "loader",
        "AUTOMATIC1111/stable-diffusion-webui#16151",
        wrong_answer("adapter/dora*", "merged", "alpha|scale", _dora(_scale_outside)),
    ),
    "s-lora-03": (
        "loader",
        "rasbt/LLMs-from-scratch#821",
        wrong_answer("adapter/lora-*", "merged", "rank|alpha", _without_rank),
    ),
    "s-ld-01": (
        "loader",
        "sgl-project/sglang#35740",
        wrong_answer(
            "weights/fp8*rows*", "weight", "scale.*(order|row|permut|other)|rows.*scale|order of", _scales_grouped
        ),
    ),
}
SECOND_STAGES = {id: HeldOut(*row) for id, row in _TABLE.items()}
