"""A sixth fresh set, of samplers and adapters: from public trackers, drawn before a look at the judge."""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of
from injected_steps import sampled
from injection import Bug, Injection, wrong_answer

from refsd.samplers import SAMPLERS
from refsd.samplers.res import phi_1, phi_2
from refsd.trajectory.run import Dump, model_of, sigmas_of

# --- samplers ----------------------------------------------------------------------------------------------------


def _recorded(case, inputs, y, sigmas, loop) -> dict[str, np.ndarray]:
    """As `sampled`, on an engine's own sigmas, and of models that answer twice."""
    dtype = y["x"].dtype
    noise, shown, said, right = inputs["noise"].values().astype(dtype), [], [], model_of(case)

    def model(x, sigma):
        shown.append(x.copy())
        said.append(right(x, sigma))
        return said[-1]

    latent = loop(model, noise[0] * dtype.type(sigmas[0]), sigmas, iter(noise[1:]), case).astype(dtype)
    if isinstance(said[0], tuple):
        one, other = (np.stack(t) for t in zip(*said, strict=True))
        return Dump(sigmas, np.stack(shown), one, latent, other).outputs()
    return Dump(sigmas, np.stack(shown), np.stack(said), latent).outputs()


def _of_trajectory(name: str, cause: str, loop, sigmas=sigmas_of) -> Injection:
    answer = Bug(answer=lambda case, inputs, y: _recorded(case, inputs, y, sigmas(case), loop))
    return Injection((f"trajectory/{name}",), answer, "x|latent|sigmas", cause)


def _lowest_twice(case):
    """The list ends with its lowest level once more, not with 0."""
    right = sigmas_of(case)
    return np.append(right[:-1], right[-2])


def _two_m(model, x, sigmas, draws, case, last=True):
    old, before = None, 0.0
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        if to == 0:
            return denoised if last else x
        h = math.log(sigma / to)
        if old is None or not h:
            x = x.dtype.type(to / sigma) * x - x.dtype.type(math.expm1(-h)) * denoised
        else:
            half = x.dtype.type(h / before / 2) if before else x.dtype.type(0)
            mixed = (1 + half) * denoised - half * old
            x = x.dtype.type(to / sigma) * x - x.dtype.type(math.expm1(-h)) * mixed
        old, before = denoised, h
    return x


def _not_denoised(model, x, sigmas, draws, case):
    """The end is the latent that the last call was shown."""
    return _two_m(model, x, sigmas, draws, case, last=False)


def _down_up(sigma, to):
    up = min(to, math.sqrt(to**2 * (sigma**2 - to**2) / sigma**2))
    return math.sqrt(to**2 - up**2), up


def _res_ancestral(model, x, sigmas, draws, case):
    """c2 is of the steps between levels, where the last one ended below its level."""
    old, last, kind = None, 0.0, x.dtype.type
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        down, up = _down_up(sigma, to)
        if old is None or down == 0:
            x = x + (x - denoised) / kind(sigma) * kind(down - sigma)
        else:
            h = math.log(sigma / down)
            b2 = phi_2(h) / (math.log(sigma / last) / h)
            x = kind(math.exp(-h)) * x + kind(h) * (kind(phi_1(h) - b2) * denoised + kind(b2) * old)
        if to > 0:
            x = x + next(draws) * kind(up)
        old, last = denoised, sigma
    return x


def _guided_history(model, x, sigmas, draws, case):
    """CFG++ whose integrator runs on the guided prediction, not on the one without the prompt."""
    old, last, kind = None, 0.0, x.dtype.type
    for sigma, to in itertools.pairwise(sigmas):
        denoised, uncond = model(x, float(sigma))
        if old is None or to == 0:
            x = denoised + (x - uncond) / kind(sigma) * kind(to)
        else:
            h = math.log(sigma / to)
            b2 = phi_2(h) / (math.log(sigma / last) / h)
            mixed = kind(phi_1(h) - b2) * denoised + kind(b2) * old
            x = kind(math.exp(-h)) * (x + denoised - uncond) + kind(h) * mixed
        old, last = denoised, sigma
    return x


def _exploding_ancestral(model, x, sigmas, draws, case):
    """A flow's ancestral step as that of data + sigma noise."""
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        down, up = _down_up(sigma, to)
        x = x + (x - denoised) / x.dtype.type(sigma) * x.dtype.type(down - sigma)
        if to > 0:
            x = x + next(draws) * x.dtype.type(up)
    return x


def _start_of_a_variance(model, x, sigmas, draws, case):
    """The start is scaled by sqrt(sigma^2 + 1) / sigma."""
    x = x * x.dtype.type(math.sqrt(sigmas[0] ** 2 + 1) / sigmas[0])
    return SAMPLERS["tcd"](model, x, sigmas, lambda *told: next(draws), eta=case.params["eta"])


# --- adapters ----------------------------------------------------------------------------------------------------


def _by_the_root_of_the_rank(case, values, y):
    """rsLoRA's scale, alpha / sqrt(rank), for a file that was trained without it."""
    modules = modules_of(values)
    if any({"down", "up"} - parts.keys() or {"magnitude", "mid"} & parts.keys() for parts in modules.values()):
        return None
    if len(modules) > 1 or case.params.get("rows") or case.params.get("tag"):
        return None
    (parts,) = modules.values()
    scale = case.params.get("strength", 1.0) * alpha_of(parts) / math.sqrt(len(parts["down"]))
    return {"merged": values["weight"] + scale * product_of(parts).reshape(values["weight"].shape)}


def _scaled_outside(case, values, y):
    """alpha / rank multiplies the whole change of DoRA, not the product within it."""
    (parts, *_) = modules_of(values).values()
    if "magnitude" not in parts or "down" not in parts or case.params.get("rule") == "comfyui":
        return None
    weight, product = values["weight"], product_of(parts)
    scale, m = alpha_of(parts) / len(parts["down"]), case.params.get("strength", 1.0)
    length = np.sqrt(((weight + product) ** 2).sum(axis=1, keepdims=True))
    whole = parts["magnitude"].reshape(-1, 1) * (weight + product) / length
    return {"merged": weight + m * scale * (whole - weight)}


_TABLE: dict[str, tuple] = {
    "z-smp-01": (
        "sampler",
        "Comfy-Org/ComfyUI#8030",
        _of_trajectory("res_multistep_a/*", "c2|down_last|sigma", _res_ancestral),
    ),
    "z-smp-02": (
        "sampler",
        "huggingface/diffusers#6477",
        _of_trajectory("dpmpp2m/karras", "last|end|0 |twice|lowest", _two_m, _lowest_twice),
    ),
    "z-smp-03": (
        "sampler",
        "leejet/stable-diffusion.cpp#1410",
        sampled(("tcd/*",), "x|latent", r"start|first|initial|1\.002|sqrt", _start_of_a_variance),
    ),
    "z-smp-04": (
        "sampler",
        "Comfy-Org/ComfyUI#6731",
        _of_trajectory(
            "res_multistep_cfg_pp/*", "denoised (for|in place of|stands where) uncond|guided", _guided_history
        ),
    ),
    "z-smp-05": (
        "sampler",
        "Comfy-Org/ComfyUI#9444, in Euler's ancestral step",
        sampled(("flow/euler_a/*",), "x|latent", "ancestral|flow|data \\+|down|scale", _exploding_ancestral),
    ),
    "z-smp-06": (
        "sampler",
        "GuernikaCore/GuernikaKit#7",
        _of_trajectory("dpmpp2m/karras", "latent is x|not denoised|last|end|x in place", _not_denoised),
    ),
    "z-lora-01": (
        "loader",
        "turboderp-org/exllamav2#619, the other way round",
        wrong_answer("adapter/lora*", "merged", "root|sqrt|rsLoRA", _by_the_root_of_the_rank),
    ),
    "z-lora-02": (
        "loader",
        "AUTOMATIC1111/stable-diffusion-webui#16151",
        wrong_answer("adapter/dora*", "merged", "scale|alpha", _scaled_outside),
    ),
}
SIXTH_STEPS = {id: HeldOut(*row) for id, row in _TABLE.items()}
