"""Held-out bugs of pipelines that were collected after the search by mechanism was written."""

import itertools

import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of
from injected_steps import sampled
from injection import other_question, wrong_answer

from refsd.models.vae.latents import LATENT_SCALES


def _cube_roots(model, x, sigmas, draws, case):
    """DPM-Solver-2 whose midpoint is the mean of cube roots, not of logarithms."""
    for sigma, to in itertools.pairwise(sigmas):
        d = (x - model(x, float(sigma))) / x.dtype.type(sigma)
        if to == 0:
            return x - d * x.dtype.type(sigma)
        middle = ((sigma ** (1 / 3) + to ** (1 / 3)) / 2) ** 3
        x_2 = x + d * x.dtype.type(middle - sigma)
        d_2 = (x_2 - model(x_2, float(middle))) / x.dtype.type(middle)
        x = x + d_2 * x.dtype.type(to - sigma)
    return x


def _divided_by_zero(model, x, sigmas, draws, case):
    """Euler's step written with 1 / sigma_next."""
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        ratio = x.dtype.type(to) * (x.dtype.type(1) / x.dtype.type(to)) * x.dtype.type(to / sigma)
        x = denoised + (x - denoised) * ratio
    return x


def _thirds_of_a_part(case, values, y):
    """The rows of one part are taken for those of all three."""
    modules = modules_of(values)
    if len(modules) != 3:
        return None
    merged = values["weight"].copy()
    for i, parts in enumerate(modules.values()):
        delta = alpha_of(parts) / len(parts["down"]) * product_of(parts)
        n = len(delta) // 3
        merged[i * n : (i + 1) * n] += delta[:n]
    return {"merged": merged}


def _not_unscaled(case, values, y):
    return None if case.params.get("kind") == "tae" else {"shown_latent": values["latent"]}


def _the_mean(case, values, y):
    if (
        case.params.get("kind") == "tae"
        or "channel_mean" in values
        or not case.params.get("draw", True)
        or not case.params.get("scaled", True)
    ):
        return None
    mean = np.split(values["moments"], 2, axis=1)[0]
    scale = LATENT_SCALES[case.params["family"]]
    return {"latent": (mean - scale.shift) * scale.factor}


HELD_OUT_STAGES_LATER: dict[str, HeldOut] = {
    "uf-01": HeldOut(
        "conditioning",
        "huggingface/diffusers@faa6cbc959 (#4335)",
        wrong_answer(
            "conditioning/*negative*",
            "context",
            "first",
            lambda case, v, y: {"context": np.broadcast_to(y["context"][:1], y["context"].shape)},
        ),
    ),
    "uf-02": HeldOut(
        "vae",
        "huggingface/diffusers@622f35b1d0 (#5213)",
        wrong_answer("latents/*", "shown_latent", "scale left out|neither scale|not scaled", _not_unscaled),
    ),
    "uf-03": HeldOut(
        "vae",
        "huggingface/diffusers@36538e1135 (#11305)",
        other_question("tiles/sdcpp-*", "tiles", "size|swapped|8 for 12", size=lambda size: [size[0], size[0]]),
    ),
    "uf-05": HeldOut(
        "vae",
        "huggingface/diffusers@e27142ac64 (#11639)",
        wrong_answer("latents/*", "latent", "the mean, not drawn|noise left out", _the_mean),
    ),
    "uf-06": HeldOut(
        "sampler",
        "kohya-ss/sd-scripts@f7fc7ddd",
        wrong_answer("prediction/fl*", "t: |t is", "1 - t", lambda case, v, y: {"t": 1 - np.asarray(y["t"])}),
    ),
    "uf-07": HeldOut(
        "sampler",
        "crowsonkb/k-diffusion@9e3002b",
        sampled(("dpm2/karras",), "x", "sigma_mid|midpoint|x\\[1\\] goes to sigma", _cube_roots),
    ),
    "uf-08": HeldOut(
        "sampler",
        "vladmandic/sdnext@870cca30f",
        sampled(("euler/karras",), "latent", "NaN|zero|not finite", _divided_by_zero),
    ),
    "uf-11": HeldOut(
        "loader",
        "kohya-ss/sd-scripts@0af4edd8",
        wrong_answer("adapter/*", "merged", "rows", _thirds_of_a_part),
    ),
    "uf-12": HeldOut(
        "schedule",
        "huggingface/diffusers@e98fabc550 (#4115)",
        wrong_answer(
            "sigmas/strength-*",
            "sigmas",
            "first.*left out|one step less|share",
            lambda case, v, y: {"sigmas": y["sigmas"][1:], "timesteps": y["timesteps"][1:]},
        ),
    ),
}
