"""A tenth fresh set, of samplers, schedules, guidance, inpainting and adapters: drawn before a look at the judge.

The names of functions of some stages' pages came into view after the bugs there had been chosen.
"""

import itertools

from held_out import HeldOut
from injected_files import modules_of, strength_of
from injected_steps import sampled
from injection import wrong_answer, wrong_parts

from refsd.models.vae.latents import LATENT_SCALES
from refsd.samplers.guidance import adaptive_projected
from refsd.samplers.levels import SD_LEVELS
from refsd.stages.inpaint import RULE as INPAINT
from refsd.stages.sigmas import RULE as SIGMAS

# --- samplers and schedules --------------------------------------------------------------------------------------


def _mu_of_the_channels(levels, tokens, steps):
    """The latent is not packed: its second axis, which is taken for the tokens, holds 16 channels."""
    return SIGMAS.mu(levels, 16 if levels == "flux" else tokens, steps)


def _head_of_a_longer_list(params, card, levels):
    """The list for one step more is cut behind the last step: it does not end at 0."""
    right = SIGMAS.spacing(params, card, levels)
    return lambda n: right(n + 1)[: n + 1]


def _noise_without_shares(model, x, sigmas, draws, case):
    """LCM adds sigma times noise to what the flow's model denoised, whole."""
    for sigma, to in itertools.pairwise(float(s) for s in sigmas):
        x = model(x, sigma)
        if to > 0:
            x = x + x.dtype.type(to) * next(draws)
    return x


# --- guidance, latents and inpainting ----------------------------------------------------------------------------


def _only_positive_momentum(cond, uncond, scale, eta, limit, momentum, average, smoothing):
    """The running average is kept only if its momentum is above 0."""
    told = (momentum, average) if momentum > 0 else (0.0, None)
    return adaptive_projected(cond, uncond, scale, eta, limit, *told, smoothing)[0]


def _decoded_without_shift(case, values, y):
    return {"shown_latent": values["latent"] / LATENT_SCALES[case.params["family"]].factor}


def _corner_of_squares(engine):
    """A pixel of the latent's mask is the first of its square, not the largest."""
    if engine != "sdcpp":
        return INPAINT.pooled(engine)
    return lambda mask, pixels: mask[:, :, ::pixels, ::pixels]


# --- adapters ----------------------------------------------------------------------------------------------------


def _strength_twice(case, values, y):
    """The strength is in the rotation's difference already, and multiplies it again."""
    strength = strength_of(case.params)
    if any("oft" not in parts for parts in modules_of(values).values()) or strength == 1:
        return None
    return {"merged": values["weight"] + strength * (y["merged"] - values["weight"])}


_TABLE = {
    "d-smp-01": (
        "sampler",
        "huggingface/diffusers#14216, the other way round",
        wrong_parts(
            "steps/*",
            "kept_before|deviation",
            "final|alpha|last step|timestep 0|first level|lowest level",
            final=1 / (1 + float(SD_LEVELS.sigmas[0]) ** 2),
        ),
    ),
    "d-smp-02": (
        "sampler",
        "huggingface/diffusers#12913",
        wrong_parts("sigmas/flux-*", "sigmas", r"\b16\b|tokens|mu\b|shift", mu=_mu_of_the_channels),
    ),
    "d-smp-03": (
        "sampler",
        "dgrauet/ltx-2-mlx#128",
        wrong_parts(
            "sigmas/flow-*",
            "sigmas|shape",
            r"one step more|n \+ 1|last|end|0 left out",
            spacing=_head_of_a_longer_list,
        ),
    ),
    "d-smp-04": (
        "sampler",
        "leejet/stable-diffusion.cpp#1413",
        sampled(("flow/lcm/*",), "x|latent", r"1 - sigma|flow|denoised \+|data \+|lcm", _noise_without_shares),
    ),
    "d-cfg-01": (
        "pipeline",
        "Comfy-Org/ComfyUI#8100",
        wrong_parts("guidance/apg*", "guided", "momentum|average", projected=_only_positive_momentum),
    ),
    "d-inp-01": (
        "pipeline",
        "leejet/stable-diffusion.cpp#1357",
        wrong_parts(
            "inpaint/*-sdcpp", "mask|cond|kept", "corner|nearest|first|sampled|one pixel", pooled=_corner_of_squares
        ),
    ),
    "d-vae-02": (
        "pipeline",
        "huggingface/diffusers#14671",
        wrong_answer("latents/sd3", "shown_latent", "shift", _decoded_without_shift),
    ),
    "d-lora-01": (
        "loader",
        "Comfy-Org/ComfyUI#15584",
        wrong_answer("adapter/*oft*", "merged", r"strength.*(twice|squared|\^2|\*\*|times)|twice", _strength_twice),
    ),
}
TENTH_STEPS = {id: HeldOut(*row) for id, row in _TABLE.items()}
