"""Fresh held-out bugs of samplers, drawn from public trackers on 2026-11-23 before a look at the judge."""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_steps import SIGMAS, sampled
from injection import Injection, wrong_answer, wrong_parts

from refsd.stages.noising import RULE as NOISING

_KEPT = 1 / (1 + SIGMAS**2)


def _shift_twice(case, values, y):
    """sigma_min and sigma_max are stored shifted, and the list between them is shifted once more."""
    a = case.params.get("shift", 3.0)
    if case.params["levels"] != "flow" or case.params["engine"] != "diffusers" or a == 1:
        return None
    s = np.asarray(y["sigmas"], np.float64)
    s = a * s / (1 + (a - 1) * s)
    return {"sigmas": s, "timesteps": 1000 * s[:-1]}


def _cut_off(case, values, y):
    """Times between two trained ones are cut to the lower."""
    if case.params["schedule"] not in ("exponential", "beta"):
        return None
    return {"timesteps": np.floor(np.asarray(y["timesteps"], np.float64))}


def _one_later_stream(streams, params, seeds):
    """The noise of the steps is drawn for the whole batch, from the first picture's seed."""
    return NOISING.streams({**params, "one_stream": True}, seeds)


def _last_step_of(x, ratio, share, denoised):
    return x.dtype.type(ratio) * x + x.dtype.type(share) * denoised


def _multistep(weight):
    """DPM-Solver++(2M). weight: h, h of the step before -> share of denoised"""

    def loop(model, x, sigmas, draws, case):
        old, before = None, 0.0
        for sigma, to in itertools.pairwise(sigmas):
            denoised = model(x, float(sigma))
            if to == 0:
                return denoised
            h = math.log(sigma / to)
            if old is None:
                x = _last_step_of(x, to / sigma, -math.expm1(-h), denoised)
            else:
                half = x.dtype.type(h / before / 2)
                x = _last_step_of(x, to / sigma, weight(h, before), (1 + half) * denoised - half * old)
            old, before = denoised, h
        return x

    return loop


def _of_noise(model, x, sigmas, draws, case):
    """DPM-Solver(2M), of the noise, where DPM-Solver++(2M) is asked for."""
    old, before = None, 0.0
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        if to == 0:
            return denoised
        eps, h = (x - denoised) / x.dtype.type(sigma), math.log(sigma / to)
        mixed = eps if old is None else eps + x.dtype.type(h / before / 2) * (eps - old)
        x = x - x.dtype.type(to * math.expm1(h)) * mixed
        old, before = eps, h
    return x


def _no_history(model, x, sigmas, draws, case):
    """DPM-Solver++(2M) SDE whose history is stored in the branch of the last step alone."""
    eta = case.params["eta"]
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        if to == 0:
            return denoised
        h = math.log(sigma / to)
        x = _last_step_of(x, to / sigma * math.exp(-eta * h), -math.expm1(-h - eta * h), denoised)
        if eta:
            x = x + next(draws) * x.dtype.type(to * math.sqrt(-math.expm1(-2 * eta * h)))
    return x


_TABLE: dict[str, tuple[str, Injection]] = {
    "f-smp-01": (
        "huggingface/diffusers#13243",
        wrong_answer("sigmas/flow-*", "sigmas", "twice|squared|once more|shift (is|of|for) ", _shift_twice),
    ),
    "f-smp-02": (
        "huggingface/diffusers#13768",
        wrong_answer("sigmas/sd-*", "timesteps", "cut|truncat|floor|whole|round", _cut_off),
    ),
    "f-smp-03": (
        "AUTOMATIC1111/stable-diffusion-webui#7730",
        wrong_parts(
            "noising/*", "step_noise", "one (stream|generator)|shared|batch|all pictures", later=_one_later_stream
        ),
    ),
    "f-smp-04": (
        "lllyasviel/ControlNet#587",
        wrong_parts(
            "steps/*",
            "kept_before",
            "alphas?\\[0\\]|(first|lowest) (level|timestep)|at 0|not 1|final",
            final=float(_KEPT[0]),
        ),
    ),
    "f-smp-05": (
        "jsboige/CoursIA#16158",
        wrong_answer(
            "steps/*",
            "deviation",
            "1 - kept|1 - alpha|own level|whole noise|not the posterior",
            lambda case, v, y: {"deviation": case.params.get("eta", 1.0) * np.sqrt(1 - np.asarray(y["kept"]))},
        ),
    ),
    "f-smp-06": (
        "mathpluscode/ImgX-DiffSeg#4",
        wrong_parts("steps/*", "deviation", "root|square|variance", put_back=lambda eta, variance: eta * variance),
    ),
    "f-smp-07": (
        "huggingface/diffusers#3116",
        wrong_parts(
            "calls/*",
            "sigmas|timesteps|begin",
            "second (stage|call)|half a step|(one|a) call early|middle of a step",
            index=lambda steps, each: max(steps * each - (each > 1), 0),
        ),
    ),
    "f-smp-08": (
        "crowsonkb/k-diffusion#56",
        sampled(
            ("dpmpp2m/*",),
            "x|latent",
            "h_last|last h|step before|h of the",
            _multistep(lambda h, last: -math.expm1(-last)),
        ),
    ),
    "f-smp-09": (
        "easydiffusion/sdkit#24",
        sampled(("dpmpp2m/*",), "x|latent", "of the noise|epsilon|\\beps\\b|slope", _of_noise),
    ),
    "f-smp-10": (
        "crowsonkb/k-diffusion#104",
        sampled(
            ("dpmpp2m_sde/*", "dpmpp2m_sde_bt/*"),
            "x|latent",
            "first order|history|order 1|no (step|call) before|left out",
            _no_history,
        ),
    ),
}
FRESH_STEPS = {id: HeldOut("sampler", source, injection) for id, (source, injection) in _TABLE.items()}
