"""A ninth fresh set, of samplers, schedules, guidance and adapters: drawn before a look at the judge.

The known bugs of the pages of guidance and of DDIM's steps came into view after the bugs there had been chosen.
"""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of, strength_of
from injection import other_question, wrong_answer, wrong_parts
from sixth_steps import _of_trajectory

from refsd.samplers.levels import shift_snr
from refsd.stages.sigmas import RULE as SIGMAS

# --- samplers and schedules --------------------------------------------------------------------------------------


def _same_stride(t, steps):
    """Each step goes down by 1000 / steps, whatever the list of timesteps."""
    return t - 1000 // steps


def _mu_of_a_quarter(levels, tokens, steps):
    """The latent is packed, its sides are halved again to count the tokens."""
    return SIGMAS.mu(levels, tokens // 4 if levels == "flux2" else tokens, steps)


def _ends_shifted_before(params, card, levels):
    """The highest level of the training is shifted before levels are spaced below it, then all are shifted."""

    def spaced(n):
        highest = shift_snr(1 - 1 / 1000, levels.shift)
        return np.append(shift_snr(highest * (1 - np.arange(n) / n), levels.shift), 0.0)

    return spaced


def _linear_term_frozen(model, x, sigmas, draws, case):
    """The factor of x is exp((to - sigma) / sigma), as if the rate 1 / sigma stood still during the step."""
    old, before = None, 0.0
    for sigma, to in itertools.pairwise(float(s) for s in sigmas):
        denoised = model(x, sigma)
        if to == 0:
            return denoised
        h, kept = math.log(sigma / to), x.dtype.type(math.exp(to / sigma - 1))
        ahead = x.dtype.type(h / before / 2) if old is not None else x.dtype.type(0)
        mixed = denoised if old is None else (1 + ahead) * denoised - ahead * old
        x = kept * x + (1 - kept) * mixed
        old, before = denoised, h
    return x


def _whole_list(card, levels):
    """The picture's strength is not read: all steps are run."""
    return lambda steps, strength, schedule: schedule(steps)


# --- adapters ----------------------------------------------------------------------------------------------------


def _scaled_twice(case, values, y):
    """alpha / rank is in the product and in its weight."""
    parts = next(iter(modules_of(values).values()))
    if "down" not in parts or "magnitude" in parts or len(modules_of(values)) > 1:
        return None
    scale = alpha_of(parts) / len(parts["down"])
    return {"merged": values["weight"] + strength_of(case.params) * scale**2 * product_of(parts)}


def _read_in_the_other_order(case, values, y):
    """down [r, I] and up [O, r] are read from memory as [I, r] and [r, O]."""
    parts = next(iter(modules_of(values).values()))
    if "down" not in parts or "magnitude" in parts or "mid" in parts or parts["down"].ndim != 2:
        return None
    (r, I), O = parts["down"].shape, len(parts["up"])
    delta = (parts["down"].reshape(I, r) @ parts["up"].reshape(r, O)).T
    if len(modules_of(values)) > 1 or delta.shape != values["weight"].shape:
        return None
    return {"merged": values["weight"] + strength_of(case.params) * alpha_of(parts) / r * delta}


_TABLE = {
    "c-smp-01": (
        "sampler",
        "huggingface/diffusers#14357",
        wrong_parts("steps/*", "previous|kept_before|deviation", "T / steps|stride|evenly", previous=_same_stride),
    ),
    "c-smp-02": (
        "sampler",
        "Nerogar/OneTrainer#1698",
        wrong_parts("sigmas/flux2-*", "sigmas", r"mu\b|shift|tokens", mu=_mu_of_a_quarter),
    ),
    "c-smp-03": (
        "sampler",
        "vllm-project/vllm-omni#7576",
        wrong_parts("sigmas/flow-below-one-*", "sigmas", "twice|shift|first|highest", spacing=_ends_shifted_before),
    ),
    "c-smp-04": (
        "sampler",
        "NVIDIA/physicsnemo#1932, review",
        _of_trajectory("dpmpp2m/karras", r"exp|factor|sigma_next / sigma|linear", _linear_term_frozen),
    ),
    "c-i2i-01": (
        "pipeline",
        "invoke-ai/InvokeAI#9000, review",
        wrong_parts("sigmas/strength-*", "sigmas|shape", "strength|all steps|whole|not cut", share=_whole_list),
    ),
    "c-cfg-01": (
        "pipeline",
        "vllm-project/vllm-omni#922",
        other_question("guidance/cfg*", "guided", r"scale.*\b4\b|\b4\b.*scale", scale=lambda scale: 4.0),
    ),
    # The tokens of references are stepped with the picture's. No case of a trajectory has references.
    "c-ref-01": ("pipeline", "invoke-ai/InvokeAI#9510", None),
    "c-lora-01": (
        "loader",
        "huggingface/peft#3111",
        wrong_answer("adapter/lora-*", "merged", r"twice|once more|\(alpha / rank\)", _scaled_twice),
    ),
    "c-ld-01": (
        "loader",
        "paiml/aprender#2138",
        wrong_answer("adapter/lora-*", "merged", "transpos|order|layout|memory", _read_in_the_other_order),
    ),
}
NINTH_STEPS = {id: HeldOut(*row) for id, row in _TABLE.items()}
