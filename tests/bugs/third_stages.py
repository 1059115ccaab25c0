"""A third fresh set, from prompts and files to pictures and steps: from public trackers on 2026-11-23."""

import itertools
import math

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of
from injected_steps import SIGMAS, sampled
from injection import other_question, wrong_answer, wrong_parts

from refsd.conventions import MASKS
from refsd.samplers.betas import linear
from refsd.samplers.levels import EdmLevels
from refsd.stages.step_noise import RULE as STEP_NOISE

# --- samplers ----------------------------------------------------------------------------------------------------


def _power_of_half(sigma, space):
    """(1 - alpha_bar) ** 2 for its root."""
    return (sigma**2 / (sigma**2 + 1)) ** 2 if space == "vp" else sigma


def _index_for_time(case, values, y):
    """The network is told the number of the step in the list of timesteps."""
    if not case.params["levels"].startswith("sd"):
        return None
    return {"timesteps": np.arange(len(y["timesteps"]))[::-1].astype(np.float64)}


def _squared_ratio(case, values, y):
    """sigma_max (sigma_min^2 / sigma_max^2) ** (i / (n - 1)): the roots of both are forgotten."""
    if case.params["schedule"] != "exponential":
        return None
    s = np.asarray(y["sigmas"], np.float64)
    n = len(s) - 1
    s = np.append(s[0] * (s[n - 1] / s[0]) ** (2 * np.arange(n) / (n - 1)), 0.0)
    times = np.interp(np.log(s[:-1]), np.log(SIGMAS), np.arange(1000))
    return {"sigmas": s, "timesteps": times}


def _ve_noise_in_a_flow(model, x, sigmas, draws, case):
    """Euler ancestral of k-diffusion in a rectified flow: the signal is not scaled down beside the noise."""
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        up = min(to, math.sqrt(to**2 * (sigma**2 - to**2) / sigma**2))
        down = math.sqrt(to**2 - up**2)
        x = x + (x - denoised) / x.dtype.type(sigma) * x.dtype.type(down - sigma)
        if to > 0:
            x = x + next(draws) * x.dtype.type(up)
    return x


# --- guidance, masks, latents, requests --------------------------------------------------------------------------


def _halves_exchanged(cond, uncond, scale):
    """The prompt stands in the first half of the batch, the guidance takes it from the second."""
    return cond + scale * (uncond - cond)


def _others_of_the_first(case, values, y):
    """The prediction with changed layers is that of the first picture for all."""
    p = case.params
    if p["form"] != "skip-layer":
        return None
    first = np.broadcast_to(values["other"][:1], values["other"].shape)
    guided = values["uncond"] + p["scale"] * (values["cond"] - values["uncond"])
    return {"guided": guided + p["other_scale"] * (values["cond"] - first)}


def _mean_of_square(mask, pixels):
    N, C, H, W = mask.shape
    return mask.reshape(N, C, H // pixels, pixels, W // pixels, pixels).mean(axis=(3, 5), dtype=mask.dtype)


def _blended(engine):
    """The mask is shrunk as a picture is: the mean of each square."""
    return MASKS[engine]._replace(pooled=_mean_of_square)


def _scaled_after_decoding(case, values, y):
    """The decoder is shown the scaled latent; its picture is divided by the factor."""
    if case.params["family"] not in ("sd1", "sdxl") or case.params.get("kind", "vae") == "tae":
        return None
    if "channel_mean" in values:
        return None
    return {"shown_latent": values["latent"]}


def _all_scaled(case, values, y):
    """x, mask and masked picture are joined first, then scaled."""
    c_in = 1 / math.sqrt(case.params["sigma"] ** 2 + 1)
    return {"shown": np.concatenate([values["x"], values["extra"]], axis=1) * c_in}


def _size_of_the_first(request, before):
    """What was made for the first size is kept."""
    return before or request


# --- prompts -----------------------------------------------------------------------------------------------------


def _end_as_text(case, values, y):
    """<|endoftext|> behind a mark is no token of its own: < | endoftext | >, spelled."""
    ids = np.array(y["ids"])
    for row in ids:
        at = int(np.argmax(row == 49407))
        if at + 5 <= len(row):
            row[at : at + 5] = 27, 347, 40786, 4160, 285
    return {"ids": ids}


def _five_tokens_too_late(case, values, y):
    """Five tokens of the prompt are dropped together with the template."""
    taken = np.array(y["taken"])
    for row in taken:
        first = int(np.argmax(row != 0))
        row[first : first + 5] = 0
    return {"taken": taken} if case.params["variant"].startswith("qwen-image") else None


def _first_number(case, values, y):
    """Of an embedding that is stored as a vector, not as a matrix, its first number is taken."""
    if not any(one.ndim == 1 for one in values.values()):
        return None
    found = np.array(y["clip"])
    vectors = [one for one in values.values() if one.ndim == 1]
    for row in found.reshape(-1, found.shape[-1]):
        if any(np.allclose(row, vector) for vector in vectors):
            row[:] = row[0]
    return {"clip": found}


# --- files -------------------------------------------------------------------------------------------------------


def _lora(scale):
    """scale: parts, number of the module, all modules -> factor"""

    def change(case, values, y):
        modules = modules_of(values)
        if any("down" not in parts or "magnitude" in parts for parts in modules.values()) or len(modules) < 2:
            return None
        weight = values["weight"].copy()
        for name, parts in modules.items():
            first, count = case.params["rows"][name]
            factor = case.params.get("strength", 1.0) * scale(parts, modules)
            weight[first : first + count] += factor * product_of(parts)
        return {"merged": weight}

    return change


def _rank(parts):
    return len(parts["down"])


def _rank_of_all(parts, modules):
    """The fused layer's rank is that of its three parts together; alpha is one part's."""
    return alpha_of(parts) / sum(_rank(one) for one in modules.values())


def _first_rank(parts, modules):
    """The first layer's alpha and own rank: where ranks differ the scale is arbitrary."""
    return alpha_of(next(iter(modules.values()))) / _rank(parts)


def _scale_in_bfloat16(values, scale):
    from refsd.stages.weights import RULE

    return RULE.scaled(values, scale.astype(ml_dtypes.bfloat16).astype(scale.dtype))


def _power_of_two_above(values, scale):
    """The scale is rounded up to a power of two, as ue8m0 stores it."""
    from refsd.stages.weights import RULE

    return RULE.scaled(values, 2.0 ** np.ceil(np.log2(scale)))


_TABLE: dict[str, tuple] = {
    "t-smp-01": (
        "sampler",
        "Stability-AI/generative-models#114",
        wrong_parts(
            "sigmas/edm-*",
            "sigmas|timesteps",
            r"0\.02\b|least|lowest|smallest|sigma_min",
            edm=lambda: EdmLevels(0.02),
        ),
    ),
    "t-smp-02": (
        "sampler",
        "antgroup/echomimic#127",
        wrong_parts("sigmas/sd-*", "sigmas|timesteps", "linear|betas?", betas=linear),
    ),
    "t-smp-03": (
        "sampler",
        "labmlai/annotated_deep_learning_paper_implementations#152",
        wrong_parts("noising/vp*", "start", "square|power|root|factor|variance", factor=_power_of_half),
    ),
    "t-smp-04": (
        "sampler",
        "Stability-AI/stablediffusion#226",
        wrong_answer("sigmas/sd-*", "timesteps", "index|number of the step|counted|step's number", _index_for_time),
    ),
    "t-smp-05": (
        "sampler",
        "huggingface/diffusers#590",
        wrong_answer("sigmas/sd-exponential*", "sigmas", "squar|power|exponent|twice|root", _squared_ratio),
    ),
    "t-smp-06": (
        "sampler",
        "leejet/stable-diffusion.cpp#1436",
        sampled(
            ("flow/euler_a/simple",),
            "x|latent",
            r"VE|k-diffusion|signal|not scaled|scale left out|Stable Diffusion|as if|data \+ sigma noise",
            _ve_noise_in_a_flow,
        ),
    ),
    "t-smp-07": (
        "sampler",
        "AUTOMATIC1111/stable-diffusion-webui#1217",
        wrong_parts(
            "step_noise/ancestral",
            "deviation|end",
            r"\beta\b",
            split=lambda sigma, to, eta: STEP_NOISE.split(sigma, to, 1 - eta),
        ),
    ),
    "t-cfg-01": (
        "pipeline",
        "huggingface/diffusers#8947",
        wrong_parts("guidance/cfg*", "guided", "swap|exchang|order", plain=_halves_exchanged),
    ),
    "t-cfg-02": (
        "pipeline",
        "pamparamm/sd-perturbed-attention#28",
        wrong_answer("guidance/skip-layer", "guided", "first (item|picture)|item 0|batch", _others_of_the_first),
    ),
    "t-inp-01": (
        "pipeline",
        "invoke-ai/InvokeAI#625",
        wrong_parts(
            "masked_step/diffusers*",
            "latent_mask|mask",
            "mean|average|blend|grey|bilinear|area",
            convention=_blended,
        ),
    ),
    "t-inp-02": (
        "pipeline",
        "Mikubill/sd-webui-controlnet#877, cause of the symptom assumed",
        wrong_parts(
            "masked_step/*",
            "mask|shown|denoised|left",
            "invert|turned|other way|exchang|swap|1 - |opposite",
            mixed=lambda new, given, mask: new * (1 - mask) + given * mask,
        ),
    ),
    "t-inp-03": (
        "pipeline",
        "huggingface/diffusers#1276: mask and masked latent scaled together with x",
        wrong_answer("prediction/*-inpaint", "shown", "together|scaled with x|mask", _all_scaled),
    ),
    "t-vae-01": (
        "pipeline",
        "mindspore-lab/mindone#531",
        other_question("latents/sdxl-mean", "latent", "drawn|sample|noise|mean", draw=lambda draw: True),
    ),
    "t-vae-02": (
        "pipeline",
        "priyammaz/PyTorch-Adventures#4",
        wrong_answer(
            "latents/*",
            "shown_latent",
            "not scaled|scale left out|without.*scale|no scale|as it is|as they are",
            _scaled_after_decoding,
        ),
    ),
    "t-req-01": (
        "pipeline",
        "deepbeepmeep/Wan2GP#947",
        wrong_parts(
            "requests/*", "positions", "first|last|earlier|before|stays|kept|stale", size=_size_of_the_first
        ),
    ),
    "t-te-01": (
        "tokens",
        "openai/CLIP#8",
        wrong_answer("clip_tokens/diffusers-*", "ids", "EOS|end|spelled|plain text|special", _end_as_text),
    ),
    "t-te-02": (
        "tokens",
        "kandinskylab/kandinsky-5#92",
        wrong_answer(
            "language_tokens/qwen-image",
            "taken",
            "template|prefix|dropped|too (late|few|many)|five|\\b5\\b|\\b39\\b",
            _five_tokens_too_late,
        ),
    ),
    "t-te-03": (
        "tokens",
        "huggingface/diffusers#2914",
        wrong_answer(
            "textual_inversion/diffusers",
            "clip",
            r"first (number|value|channel|of \d+ numbers|is read for all)|one number|all channels",
            _first_number,
        ),
    ),
    "t-lora-01": (
        "loader",
        "huggingface/diffusers#14409",
        wrong_answer("adapter/lora-fused", "merged", "alpha|rank", _lora(_first_rank)),
    ),
    "t-lora-02": (
        "loader",
        "kohya-ss/sd-scripts#2204",
        wrong_answer("adapter/lora-fused", "merged", "rank|third", _lora(_rank_of_all)),
    ),
    "t-ld-01": (
        "loader",
        "Comfy-Org/comfy-kitchen#2",
        wrong_parts("weights/fp8*", "weight", "bfloat16|bf16", scaled=_scale_in_bfloat16),
    ),
    "t-ld-02": (
        "loader",
        "huggingface/transformers#46763",
        wrong_parts("weights/fp8*", "weight", "power of (two|2)|ue8m0|exponent", scaled=_power_of_two_above),
    ),
}
THIRD_STAGES = {id: HeldOut(*row) for id, row in _TABLE.items()}
