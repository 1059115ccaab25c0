"""A fifteenth fresh set, of samplers, guidance, words, latents and files: drawn before a look at the judge."""

import itertools

import numpy as np
from held_out import HeldOut
from injected_files import _plain_lora
from injected_steps import sampled
from injection import other_question, wrong_answer, wrong_parts

from refsd.stages.language_tokens import RULE as LANGUAGE

# --- samplers ----------------------------------------------------------------------------------------------------


def _noise_of_another_stream(model, x, sigmas, draws, case):
    """The step draws from the process's generator, not from the picture's."""
    stream = np.random.default_rng(1)
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        x = denoised if to == 0 else (1 - to) * denoised + to * stream.standard_normal(x.shape)
        x = x.astype(denoised.dtype)
    return x


# --- words and latents -------------------------------------------------------------------------------------------

_END = "\0"


def _ends_marked(parts):
    *first, last = LANGUAGE.whole(parts)
    return [*((text + _END, weight) for text, weight in first), last]


def _with_its_end(tokenizer, text):
    ids = tokenizer.encode(text.removesuffix(_END))
    return [*ids, tokenizer.ends.eos] if text.endswith(_END) else ids


def _sampled(moments):
    """A picture that is a condition is drawn from its posterior, with a seed of its own."""
    mean, logvar = np.split(moments, 2, axis=1)
    noise = np.random.default_rng(42).standard_normal(mean.shape)
    return (mean + np.exp(np.clip(logvar, -30, 20) / 2) * noise).astype(mean.dtype), logvar


_TABLE = {
    "fi-smp-01": (
        "sampler",
        "huggingface/diffusers#11347",
        wrong_parts(
            "steps/linspace-*",
            "previous|kept|deviation|mask|step",
            r"T / steps|1000 / steps|(equal|even|same|whole) steps|spacing|down",
            previous=lambda t, steps: np.maximum(t - 1000 // steps, -1),
        ),
    ),
    "fi-smp-02": (
        "sampler",
        "Panchovix/stable-diffusion-webui-reForge#183",
        other_question(
            "sigmas/strength-a1111-*", "sigmas", "normal|discrete|schedule", schedule=lambda schedule: "normal"
        ),
    ),
    "fi-smp-03": (
        "sampler",
        "vllm-project/vllm-omni#5176",
        sampled(
            ("flow/lcm/simple",),
            r"latent|\bx\b|step|noise",
            "noise.*(other|another|own|not the case|unrelated|different|unknown|stream|given)"
            "|(other|another) noise",
            _noise_of_another_stream,
        ),
    ),
    "fi-smp-04": ("sampler", "leejet/stable-diffusion.cpp#1697, a schedule on sigmas of a flow with a shift", None),
    "fi-cfg-01": (
        "pipeline",
        "huggingface/diffusers#12905",
        wrong_parts(
            "guidance/zimage*",
            "guided",
            r"(up to|below|at|under|than|<=?|>) 1\b|no guidance|off|cond alone|without guidance"
            "|guidance.*(left out|not)",
            on=lambda scale: scale > 1,
        ),
    ),
    "fi-cfg-02": (
        "pipeline",
        "sgl-project/sglang#20679, its first point",
        wrong_parts("guidance/qwen-image*", "guided", "norm|length|rescal", tokens=lambda guided, cond: guided),
    ),
    "fi-tok-01": (
        "pipeline",
        "leejet/stable-diffusion.cpp#1501",
        wrong_parts(
            "language_tokens/sd3-t5-sdcpp-weights",
            "ids|mask|weights|token",
            "EOS|end|</s>.*put in",
            whole=_ends_marked,
            encode=_with_its_end,
        ),
    ),
    "fi-vae-01": (
        "pipeline",
        "utensils/mold#1435, its condition",
        wrong_parts(
            "latents/*-mean",
            "latent",
            "drawn|sample|posterior|noise|mean|mode|deviation",
            split=_sampled,
        ),
    ),
    "fi-cfg-03": ("pipeline", "huggingface/diffusers#13704, a guided answer without deviation", None),
    "fi-cfg-04": ("pipeline", "vllm-project/vllm-omni#5056, a scale of 0", None),
    "fi-cfg-05": ("pipeline", "vllm-project/vllm-omni#3646, GLM-Image", None),
    "fi-cch-01": ("pipeline", "sgl-project/sglang#35054, TeaCache with guidance", None),
    "fi-ldr-01": (
        "loader",
        "Lightricks/LTX-2#172",
        wrong_parts(
            "weights/fp8-*",
            "weight",
            r"scale.*(not|left out|ignored|\b1\b|missing|never)|without.*scale|unscaled|no scale",
            scaled=lambda values, scale: values,
        ),
    ),
    "fi-lora-01": (
        "loader",
        "sgl-project/sglang#16935",
        wrong_answer("adapter/lora-*", "merged", "alpha", _plain_lora(lambda parts, modules: 1.0)),
    ),
    "fi-lora-02": ("loader", "huggingface/peft#2489, an adapter's bias", None),
    "fi-lora-03": ("loader", "paiml/aprender#2189, alpha over the root of the rank", None),
    "fi-lora-04": ("loader", "mflux-community/mflux#665, an adapter in 4 bits", None),
}
FIFTEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
