"""A fourth fresh set, from prompts and files to pictures and steps: from public trackers on 2026-11-24."""

import numpy as np
from fourth_operations import FOURTH_OPERATIONS
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of
from injection import wrong_answer, wrong_parts

from refsd.models.vae.latents import LatentScale
from refsd.samplers.levels import FlowLevels, shift_snr
from refsd.stages.guidance import RULE as GUIDANCE
from refsd.stages.prediction import RULE as PREDICTION

# --- samplers ----------------------------------------------------------------------------------------------------


class _CountedTwice(FlowLevels):
    """The level of timestep t is that of t + 2: both the caller and the formula add one."""

    def to_sigma(self, t):
        return super().to_sigma(np.asarray(t, np.float64) + 1)


def _one_level_less(case, values, y):
    """linspace(1, 0, n) holds the end already: n - 1 steps for n."""
    if case.params["schedule"] != "flow_linspace" or case.params["levels"] != "flow":
        return None
    n = case.params["steps"]
    return {"sigmas": shift_snr(np.linspace(1.0, 0.0, n), case.params["shift"])}


def _other_sign_of_c_out(name):
    right = PREDICTION.prediction(name)
    if name != "v":
        return right

    def scalings(sigma):
        c_skip, c_out, c_in = right.scalings(sigma)
        return c_skip, abs(c_out), c_in

    return right._replace(scalings=scalings)


# --- guidance, pictures, latents, masks --------------------------------------------------------------------------


def _three_channels(cond, uncond, scale):
    """Only the first three channels are guided, as of a picture; the latent's fourth is the prompt's."""
    guided = GUIDANCE.plain(cond, uncond, scale)
    return np.concatenate([guided[:, :3], cond[:, 3:]], axis=1)


def _scaled_start(case, values, y):
    """The start, picture and noise, is multiplied by the highest level, as pure noise is."""
    if case.params["space"] != "ve":
        return None
    return {"start": y["start"] * 14.614642}


class _NoShift(LatentScale):
    def to_denoiser(self, z):
        return z * self.factor


def _without_a_shift(family, kind):
    from refsd.stages.latents import RULE

    right = RULE.scale(family, kind)
    return right if right is None else _NoShift(*right)


def _mean_for_spread(scale, mean, spread):
    from refsd.stages.latents import RULE

    return RULE.channels(scale, spread, mean)


# --- prompts and files -------------------------------------------------------------------------------------------


def _padded_with_the_turns_end(case, values, y):
    """Padding is <|im_end|>, which ends a turn, for <|endoftext|>."""
    ids = np.array(y["ids"])
    tokens = case.params["vocabulary"].get("tokens", [])
    if "<|im_end|>" not in tokens or not case.params["variant"].startswith("zimage"):
        return None
    return {
        "ids": np.where((y["mask"] == 0) & (ids == tokens.index("<|endoftext|>")), tokens.index("<|im_end|>"), ids)
    }


def _thinking_switched_off(case, values, y):
    """The template ends with an empty thought, which the family's has not: <think> </think> before the answer."""
    ids, mask = np.array(y["ids"]), np.array(y["mask"])
    tokens = case.params["vocabulary"].get("tokens", [])
    if "<think>" not in tokens or not case.params["variant"].startswith("zimage"):
        return None
    thought = [tokens.index(token) for token in ("<think>", "</think>")]
    for row, seen in zip(ids, mask, strict=True):
        end = int(seen.sum())
        if end + 2 <= len(row):
            row[end : end + 2], seen[end : end + 2] = thought, 1
    return {"ids": ids, "mask": mask}


def _one_scale_for_the_file(case, values, y):
    """Each module's scale is alpha over rank of the file's settings, which are the largest module's."""
    modules = modules_of(values)
    if any("down" not in parts or "magnitude" in parts for parts in modules.values()) or len(modules) < 2:
        return None
    largest = max(modules.values(), key=lambda parts: len(parts["down"]))
    factor = alpha_of(largest) / len(largest["down"]) * case.params.get("strength", 1.0)
    weight = values["weight"].copy()
    for name, parts in modules.items():
        first, count = case.params["rows"][name]
        weight[first : first + count] += factor * product_of(parts)
    return {"merged": weight}


def _length_without_the_scale(case, values, y):
    """DoRA's lengths are those of W + B A, without alpha over rank, which the product has."""
    (parts, *_) = modules_of(values).values()
    if "magnitude" not in parts or "down" not in parts or case.params.get("rule") == "comfyui":
        return None
    weight, product = values["weight"], product_of(parts)
    scale, m = alpha_of(parts) / len(parts["down"]), case.params.get("strength", 1.0)
    length = np.sqrt(((weight + product) ** 2).sum(axis=1, keepdims=True))
    whole = parts["magnitude"].reshape(-1, 1) * (weight + scale * product) / length
    return {"merged": weight + m * (whole - weight)}


def _scale_of_the_first_row(case, values, y):
    """A scale for each row is read as one for the tensor: the first."""
    scale = values["scale"].ravel()
    if scale.size < 2 or y["weight"].ndim != 2 or scale.size != len(y["weight"]):
        return None
    return {"weight": y["weight"] / scale[:, None] * scale[0]}


_TABLE: dict[str, tuple] = {
    "x-smp-01": (
        "sampler",
        "leejet/stable-diffusion.cpp#1372",
        wrong_parts(
            "sigmas/flow-*",
            "sigmas",
            r"t \+ |\+ 2|twice|one (step|timestep|level)|\b2 for 1|1001|next",
            flow=_CountedTwice,
        ),
    ),
    "x-smp-02": (
        "sampler",
        "sgl-project/sglang#33552",
        wrong_answer(
            "sigmas/flow-linspace*", "sigmas", "one less|steps is 6|left out|fewer|6 (steps|for 7)", _one_level_less
        ),
    ),
    "x-smp-03": (
        "sampler",
        "huggingface/diffusers#1481, what it asks for",
        wrong_parts(
            "prediction/v*",
            "denoised",
            "sign|-answer|EDM of sigma_data 1|as data - noise|\\+",
            prediction=_other_sign_of_c_out,
        ),
    ),
    "x-cfg-01": (
        "pipeline",
        "facebookresearch/DiT#41",
        wrong_parts(
            "guidance/cfg*",
            "guided",
            r"channel.* 3|3 channels|first (3|three)|last .*channel",
            plain=_three_channels,
        ),
    ),
    "x-cfg-02": (
        "pipeline",
        "lucidrains/denoising-diffusion-pytorch#256",
        wrong_parts(
            "guidance/rescale", "guided", "rescale|phi|left out", rescaled=lambda guided, cond, phi: guided
        ),
    ),
    "x-i2i-01": (
        "pipeline",
        "huggingface/diffusers#3487",
        wrong_answer("noising/ve*", "start", r"14\.6|highest", _scaled_start),
    ),
    "x-inp-01": (
        "pipeline",
        "huggingface/diffusers#3749",
        wrong_parts("masked_step/diffusers*", "left|step|x", "level|sigma", level=lambda sigma, sigma_next: sigma),
    ),
    "x-vae-01": (
        "pipeline",
        "huggingface/diffusers#8887",
        wrong_parts("latents/sd3", "latent", "shift", scale=_without_a_shift),
    ),
    "x-vae-02": (
        "pipeline",
        "huggingface/diffusers#5243",
        wrong_parts("latents/sdxl-by-channel", "latent", "swap|exchang|in place of", channels=_mean_for_spread),
    ),
    "x-te-01": (
        "tokens",
        "apple/coreai-models#120, padding",
        wrong_answer("language_tokens/zimage*", "ids", "padd|im_end", _padded_with_the_turns_end),
    ),
    "x-te-02": (
        "tokens",
        "apple/coreai-models#120, thinking",
        wrong_answer("language_tokens/zimage*", "ids|mask", "think|2 tokens too many", _thinking_switched_off),
    ),
    "x-lora-01": (
        "loader",
        "WalkingMeatAxolotl/AnimaLoraStudio#350",
        wrong_answer("adapter/lora-fused", "merged", "rank|alpha", _one_scale_for_the_file),
    ),
    "x-lora-02": (
        "loader",
        "adapter-hub/adapters#790, review",
        wrong_answer("adapter/dora*", "merged", "scale|alpha|length|norm", _length_without_the_scale),
    ),
    "x-ld-01": (
        "loader",
        "Comfy-Org/ComfyUI#14847, cause assumed",
        wrong_answer("weights/fp8-scaled-rows", "weight", "first", _scale_of_the_first_row),
    ),
}
FOURTH: dict[str, HeldOut] = {**FOURTH_OPERATIONS, **{id: HeldOut(*row) for id, row in _TABLE.items()}}
