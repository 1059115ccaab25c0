"""Held-out bugs of samplers, schedules, levels and noise, written out by hand."""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_steps import SIGMAS, sampled
from injection import other_question, wrong_answer, wrong_parts

from refsd.samplers.schedules.flow import flux_mu

_KEPT = 1 / (1 + SIGMAS**2)


# --- loops -------------------------------------------------------------------------------------------------------


def _heun_first_sigma(model, x, sigmas, draws, case):
    """The slope of the second stage is divided by the first's sigma."""
    for sigma, to in itertools.pairwise(sigmas):
        d = (x - model(x, float(sigma))) / x.dtype.type(sigma)
        dt = x.dtype.type(to - sigma)
        if to == 0:
            x = x + d * dt
        else:
            second = x + d * dt
            d_2 = (second - model(second, float(to))) / x.dtype.type(sigma)
            x = x + (d + d_2) / 2 * dt
    return x


def _picture_for_noise(model, x, sigmas, draws, case):
    """DDIM of a model that answers with the picture: its answer stands for epsilon too."""
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        x = denoised + x.dtype.type(to) * denoised
    return x


def _up_down(sigma, to, case):
    eta = case.params["eta"]
    up = min(to, eta * math.sqrt(to**2 * (sigma**2 - to**2) / sigma**2))
    return up, math.sqrt(to**2 - up**2)


def _middle_at_the_end(model, x, sigmas, draws, case):
    """DPM-Solver++(2S) ancestral whose second call is told the next sigma."""
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        if to == 0:
            return denoised
        up, down = _up_down(sigma, to, case)
        h = math.log(sigma / down)
        middle = math.sqrt(sigma * down)
        x_2 = x.dtype.type(middle / sigma) * x - x.dtype.type(math.expm1(-h / 2)) * denoised
        denoised_2 = model(x_2, float(to))
        x = x.dtype.type(down / sigma) * x - x.dtype.type(math.expm1(-h)) * denoised_2
        x = x + next(draws) * x.dtype.type(up)
    return x


def _res_of_the_schedule(model, x, sigmas, draws, case):
    """res_multistep ancestral: the step before is taken to have ended at its sigma, not at sigma_down."""
    old, before = None, 0.0
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        up, down = _up_down(sigma, to, case) if to else (0.0, 0.0)
        if old is None or down == 0:
            x = x + (x - denoised) / x.dtype.type(sigma) * x.dtype.type(down - sigma)
        else:
            h = math.log(sigma / down)
            c2 = math.log(sigma / before) / h
            phi1 = -math.expm1(-h) / h
            b2 = (1 - phi1) / h / c2
            x = x.dtype.type(math.exp(-h)) * x + x.dtype.type(h) * (
                x.dtype.type(phi1 - b2) * denoised + x.dtype.type(b2) * old
            )
        if to:
            x = x + next(draws) * x.dtype.type(up)
        old, before = denoised, sigma
    return x


# --- sigmas, levels ----------------------------------------------------------------------------------------------


def _trained_steps(case, values, y):
    """Mean and variance from the trained step below, whatever the number of steps."""
    t = np.asarray(y["timesteps"]).astype(int)
    kept, before = _KEPT[t], np.where(t > 0, _KEPT[t - 1], 1.0)
    variance = (1 - before) / (1 - kept) * (1 - kept / before)
    return {"kept_before": before, "deviation": case.params.get("eta", 1.0) * np.sqrt(variance)}


def _ends_above_zero(case, values, y):
    s = np.array(y["sigmas"])
    return {"sigmas": np.append(s[:-1], s[-2])}


def _ascending(case, values, y):
    if case.params["schedule"] not in ("exponential", "beta", "beta_of_sigma"):
        return None
    return {
        "sigmas": np.append(y["sigmas"][:-1][::-1], 0.0),
        "timesteps": y["timesteps"][::-1].copy(),
    }


# --- noise -------------------------------------------------------------------------------------------------------


def _start(change):
    """change: case, latent, noise, the first draw of the steps, the right start -> another"""

    def answer(case, values, y):
        wrong = change(
            case, values["latent"], *(np.asarray(y[k], np.float64) for k in ("noise", "step_noise", "start"))
        )
        return None if wrong is None else {"start": wrong}

    return answer


def _share(case) -> tuple[float, float]:
    s, space = case.params["sigma"], case.params["space"]
    return {"ve": (1.0, s), "flow": (1 - s, s), "vp": (1 / math.sqrt(s * s + 1), s / math.sqrt(s * s + 1))}[space]


def _exploding(case, latent, noise, draws, start):
    return latent + case.params["sigma"] * noise if case.params["space"] == "vp" else None


def _by_variance(case, latent, noise, draws, start):
    kept, factor = _share(case)
    return kept * latent + factor**2 * noise if case.params["space"] == "vp" else None


def _other_level(case, latent, noise, draws, start):
    s = case.params["sigma"] * 1.13
    kept, factor = {"ve": (1.0, s), "flow": (1 - s, s), "vp": (1 / math.sqrt(s * s + 1), s / math.sqrt(s * s + 1))}[
        case.params["space"]
    ]
    return kept * latent + factor * noise


def _fresh(case, latent, noise, draws, start):
    kept, factor = _share(case)
    return kept * latent + factor * draws[0]


HELD_OUT_STEPS: dict[str, HeldOut] = {
    "us-smp-01": HeldOut(
        "sampler",
        "huggingface/diffusers@0f1c24664c (#1512)",
        sampled(
            ("heun/karras",),
            "x|latent",
            "sigma in place of sigma_next, in d_2",
            _heun_first_sigma,
        ),
    ),
    "us-smp-02": HeldOut(
        "sampler",
        "huggingface/diffusers@c812d97d5b (#2094)",
        sampled(
            ("euler/karras",), "x|latent", "denoised (stands )?for (the )?(noise|epsilon|slope)", _picture_for_noise
        ),
    ),
    "us-smp-03": HeldOut(
        "sampler",
        "huggingface/diffusers@cedafb8600 (#2076)",
        wrong_answer("steps/*", "kept_before", "one down|trained step", _trained_steps),
    ),
    "us-smp-04": HeldOut(
        "schedule",
        "huggingface/diffusers@b75b204a58 (#10807)",
        wrong_parts(
            "sigmas/flux*",
            "sigmas",
            "1\\.16|mu .*times|shift (is )?[0-9.]+|shift.* for",
            mu=lambda kind, tokens, steps: flux_mu(tokens, 0.5, 1.16),
        ),
    ),
    "us-smp-05": HeldOut(
        "schedule",
        "huggingface/diffusers@ac61eefc9f (#6477)",
        wrong_answer("sigmas/*karras*", "sigmas: step", "lowest sigma|last.*again|repeated", _ends_above_zero),
    ),
    "us-smp-06": HeldOut(
        "pipeline",
        "huggingface/diffusers@5b11c5dc77 (#5158)",
        wrong_answer("noising/*", "start", "variance-exploding|latent whole|not scaled", _start(_exploding)),
    ),
    "us-smp-07": HeldOut(
        "pipeline",
        "huggingface/diffusers@c7469ebe74 (#3839)",
        wrong_answer(
            "noising/*",
            "start",
            "(next|later|other|another|fresh|steps').*(noise|draw|numbers)|step_noise",
            _start(_fresh),
        ),
    ),
    "us-smp-08": HeldOut(
        "schedule",
        "huggingface/diffusers@637e2302ac (#9954)",
        wrong_answer("sigmas/sd-*", "sigmas", "revers|ascending|rising", _ascending),
    ),
    "us-smp-09": HeldOut(
        "sampler",
        "crowsonkb/k-diffusion@2ce2bb3",
        wrong_answer(
            "prediction/*",
            "t: |t is",
            "(times|by|1\\.57|pi / 2|\\* )",
            lambda case, v, y: {"t": np.asarray(y["t"]) * np.pi / 2},
        ),
    ),
    "us-smp-10": HeldOut(
        "sampler",
        "leejet/stable-diffusion.cpp@2bcff674 (#1435)",
        sampled(
            ("dpmpp2s_a/*",), "denoised|x", "told the next|sigma_next in place of sigma_mid", _middle_at_the_end
        ),
    ),
    "us-smp-11": HeldOut(
        "sampler",
        "comfyanonymous/ComfyUI#8030",
        sampled(("res_multistep_a/*",), "x|latent", "in place of down_last", _res_of_the_schedule),
    ),
    "us-smp-13": HeldOut(
        "schedule",
        "vladmandic/sdnext@28c66c981",
        other_question("sigmas/flow-*", "sigmas", "no shift|shift (is )?1\\b|shift left out", shift=lambda a: 1.0),
    ),
    "us-smp-15": HeldOut(
        "pipeline",
        "huggingface/diffusers@c803a8f8c0 (#5698)",
        wrong_answer(
            "noising/*", "start", "(next|another|other|wrong) level|sigma (is|of|times|[0-9])", _start(_other_level)
        ),
    ),
    "us-inp-01": HeldOut(
        "pipeline",
        "huggingface/diffusers@38adcd21bd (#3749)",
        wrong_answer(
            "steps/*",
            "mask_sigma",
            "own level",
            lambda case, v, y: {"mask_sigma": SIGMAS[np.asarray(y["timesteps"]).astype(int)]},
        ),
    ),
    "us-inp-02": HeldOut(
        "pipeline",
        "huggingface/diffusers@35a740427e (#3532)",
        wrong_answer(
            "noising/ve*",
            "start",
            "(scaled|multiplied|times|y = )",
            _start(lambda c, latent, n, d, start: 14.6146 * start),
        ),
    ),
    "us-inp-03": HeldOut(
        "pipeline",
        "lllyasviel/stable-diffusion-webui-forge@8de4896b",
        wrong_answer(
            "steps/*",
            "mask_sigma",
            "(no|without) noise|not noised|clean|mask_sigma.*(0|zero)",
            lambda case, v, y: {"mask_sigma": np.zeros(len(y["timesteps"]))},
        ),
    ),
    "us-inp-07": HeldOut(
        "noise",
        "huggingface/diffusers@2f023d7b84 (#10185)",
        wrong_answer("noising/*", "start", "variance for|square", _start(_by_variance)),
    ),
    "us-vae-04": HeldOut(
        "noise",
        "kohya-ss/sd-scripts@6f0e235f",
        wrong_answer(
            "noising/flow*",
            "start",
            "0\\.0609|constant|offset",
            _start(lambda c, latent, n, d, start: start + 0.0609),
        ),
    ),
    "us-sch-02": HeldOut(
        "schedule",
        "kohya-ss/sd-scripts@a1a5627b",
        wrong_parts(
            "sigmas/flux-*",
            "sigmas",
            "^tokens|tokens (is|of|[0-9])",
            mu=lambda kind, tokens, steps: flux_mu(max(tokens // 64, 1)),
        ),
    ),
    "us-sch-03": HeldOut(
        "schedule",
        "leejet/stable-diffusion.cpp@917f7bfe (#913)",
        other_question("sigmas/flow-*", "sigmas", "shift (is |of )?1\\.15|1\\.15", shift=lambda a: 1.15),
    ),
    "us-rng-01": HeldOut(
        "noise",
        "leejet/stable-diffusion.cpp@45842865",
        wrong_parts("noising/*", "noise", "bits", seed=lambda seed, b: (seed + b) & 0xFFFFFFFF),
    ),
}
