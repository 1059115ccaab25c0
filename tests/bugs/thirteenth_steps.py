"""A thirteenth fresh set, of samplers, latents, words and files: drawn before a look at the judge."""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_files import modules_of, product_of, strength_of
from injected_steps import sampled
from injection import Bug, Injection, other_question, wrong_answer, wrong_parts

from refsd.models.vae.latents import LATENT_SCALES
from refsd.trajectory.run import Dump, model_of, sigmas_of

# --- samplers ----------------------------------------------------------------------------------------------------


def _all_of_the_unconditional(case, inputs, y):
    """CFG++ with the noise of no prompt in both places: in the clean picture, too."""
    dtype = y["x"].dtype
    x, sigmas, model = inputs["noise"].values()[0].astype(dtype), sigmas_of(case), model_of(case)
    x = x * dtype.type(sigmas[0])
    shown, said, without = [], [], []
    for sigma, to in itertools.pairwise(sigmas):
        denoised, uncond = model(x, float(sigma))
        shown, said, without = [*shown, x], [*said, denoised], [*without, uncond]
        x = (uncond + to * (x - uncond) / sigma).astype(dtype)
    return Dump(sigmas, np.stack(shown), np.stack(said), x, np.stack(without)).outputs()


def _second_order_to_the_end(model, x, sigmas, draws, case):
    """Steps are of orders 1, 2, 1, 2 ...; an even number of them ends with 2, to sigma 0 too."""
    for i, (sigma, to) in enumerate(itertools.pairwise(sigmas)):
        denoised = model(x, float(sigma))
        if i % 2 == 0:
            start, first, began = x, denoised, float(sigma)
        h = math.log(began / to) if to > 0 else math.inf
        kept = to / began
        y = kept * start + (1 - kept) * first
        if i % 2:
            r = np.float64(math.log(began / sigma)) / h
            y = y + 0.5 * (1 - kept) * (denoised - first) / r
        x = y.astype(x.dtype)
    return x


# --- pixels, latents and adapters ---------------------------------------------------------------------------------


def _bytes_cut_off(case, values, y):
    """An upscaler's picture becomes bytes by leaving out what is behind the point."""
    picture = np.clip(values["answer"].astype(np.float32), 0, 1)
    return {"bytes": np.floor(picture.transpose(0, 2, 3, 1) * np.float32(255))}


def _decoded_as_by_the_full_one(case, values, y):
    """A tiny decoder takes the denoiser's latent; it is given that of the full autoencoder's decoder."""
    return {"shown_latent": LATENT_SCALES[case.params["family"]].to_vae(values["latent"])}


def _alpha_of_eight(case, values, y):
    """A file without alphas is merged as if each were 8, whatever its rank."""
    modules = [parts for parts in modules_of(values).values() if "down" in parts]
    if len(modules) != 1 or "alpha" in modules[0] or "magnitude" in modules[0]:
        return None
    scale = strength_of(case.params) * 8 / len(modules[0]["down"])
    return {"merged": values["weight"] + scale * product_of(modules[0]).reshape(values["weight"].shape)}


_TABLE = {
    "th-smp-01": (
        "sampler",
        "lucidrains/denoising-diffusion-pytorch#346",
        Injection(
            ("trajectory/euler_cfg_pp/*",),
            Bug(answer=_all_of_the_unconditional),
            r"\bx\b|latent|step",
            "uncond|without the prompt|no prompt|not guided|unguided",
        ),
    ),
    "th-smp-02": (
        "sampler",
        "huggingface/diffusers#14243",
        other_question(
            "sigmas/flow-ltx-*",
            "sigmas",
            r"4096|tokens|shift|\bmu\b",
            options=lambda options: {**options, "tokens": 4096},
        ),
    ),
    "th-smp-03": (
        "sampler",
        "huggingface/diffusers#6953",
        sampled(
            ("dpmpp2s/discrete",),
            r"latent|last|\bx\b",
            "last step|order|final|infin|NaN|sigma 0|step to 0|to zero",
            _second_order_to_the_end,
        ),
    ),
    "th-pix-01": (
        "pipeline",
        "AUTOMATIC1111/stable-diffusion-webui#14504",
        wrong_answer("pixels/esrgan-x2", "bytes", "truncat|cut off|round|floor|half", _bytes_cut_off),
    ),
    "th-lat-01": (
        "pipeline",
        "IonDen/mlx-taef#41",
        wrong_answer(
            "latents/tae*", "latent", "scale|scaling|shift|factor|tiny|as it is", _decoded_as_by_the_full_one
        ),
    ),
    "th-cch-01": (
        "pipeline",
        "vllm-project/vllm-omni#2240, in other caches' cases",
        wrong_parts(
            "caches/*-two-pictures",
            "computed|reused|answer|step|cond",
            "reset|refresh|kept|(last|previous|first) picture|picture before|fresh",
            fresh=False,
        ),
    ),
    "th-tok-01": (
        "tokenizer",
        "Nerogar/OneTrainer#1471",
        wrong_parts(
            "clip_tokens/*-padding-0*",
            "ids",
            "pad|EOS|end of text|49407",
            pad=lambda ids, rule: ids,
        ),
    ),
    "th-lora-01": (
        "loader",
        "vllm-project/vllm-omni#6017",
        wrong_answer("adapter/*", "merged", "alpha|rank|scale", _alpha_of_eight),
    ),
}
THIRTEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
