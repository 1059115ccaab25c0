"""A seventeenth fresh set, of samplers, guidance, requests and files: drawn before a look at the judge."""

import itertools

import numpy as np
from held_out import HeldOut
from injected_files import alpha_of, modules_of, product_of
from injected_steps import sampled
from injection import wrong_answer, wrong_parts

from refsd.models.vae.latents import LATENT_SCALES
from refsd.samplers.er_sde import er_sde

# --- samplers ----------------------------------------------------------------------------------------------------


def _without_the_flows_alpha(model, x, sigmas, draws, case):
    """Steps as if x were data + sigma noise, where it is (1 - sigma) data + sigma noise."""
    return er_sde(model, x, np.asarray(sigmas), lambda sigma, to: next(draws).astype(x.dtype))


def _noise_of_the_process(model, x, sigmas, draws, case):
    """The step draws from the process's generator, which others have drawn from."""
    stream = np.random.default_rng(1717)
    stream.random(10000)
    for sigma, to in itertools.pairwise(sigmas):
        denoised = model(x, float(sigma))
        noise = stream.standard_normal(x.shape).astype(x.dtype)
        x = denoised if to == 0 else ((1 - to) * denoised + to * noise).astype(x.dtype)
    return x


# --- guidance, latents and noise ---------------------------------------------------------------------------------


def _flat(text):
    """The first scale, as often as there are steps."""
    pieces = [piece.split("x") for piece in text.split("+")]
    return [float(pieces[0][0])] * sum(int(count) for _, count in pieces)


def _mixed_twice(latent, noise, kept, factor, of):
    """What the mix made is mixed with the picture once more."""
    picture = (latent - of.mean) / of.deviation
    return kept * picture + factor * (kept * picture + factor * noise)


# --- files -------------------------------------------------------------------------------------------------------


def _magnitudes_of_inputs(case, values, y):
    """Lengths are those of columns, and so are the magnitudes."""
    (parts,) = modules_of(values).values()
    merged = values["weight"] + alpha_of(parts) / len(parts["down"]) * product_of(parts)
    return {"merged": merged * parts["magnitude"].reshape(1, -1) / np.sqrt((merged**2).sum(axis=0))}


_TABLE = {
    "sn-smp-01": (
        "sampler",
        "Comfy-Org/ComfyUI#8744",
        sampled(
            ("flow/er_sde/simple",),
            r"latent|\bx\b|step",
            r"alpha|flow|1 - sigma|data \+ sigma|lambda|k-diffusion|variance explod|\bve\b|er_sde",
            _without_the_flows_alpha,
        ),
    ),
    "sn-smp-02": (
        "sampler",
        "invoke-ai/InvokeAI#9115, what its review found",
        sampled(
            ("flow/lcm/simple",),
            r"latent|\bx\b|step|noise",
            "noise.*(other|another|own|not the case|unrelated|different|unknown|stream|given)"
            "|(other|another) noise|normal numbers",
            _noise_of_the_process,
        ),
    ),
    "sn-smp-03": ("sampler", "SceneWorks/SceneWorks#775, its first: Ideogram's schedule", None),
    "sn-smp-04": ("sampler", "lemonade-sdk/thenoise#7, a share of the steps as the model's time", None),
    "sn-smp-05": ("sampler", "Comfy-Org/ComfyUI#7265, what is left of the noise by rounding", None),
    "sn-cfg-01": (
        "pipeline",
        "SceneWorks/SceneWorks#775, its second",
        wrong_parts(
            "guidance_scales/listed",
            "scale",
            "first (scale|step)|flat|one scale|same|all steps|each step|constant",
            listed=_flat,
        ),
    ),
    "sn-vae-01": (
        "pipeline",
        "SceneWorks/SceneWorks#775, its third",
        wrong_parts(
            "latents/flux2",
            "latent|decoded",
            r"(scale|factor|shift).*(of|flux|0\.36|another|one)|mean|spread|channel|statistic|0\.36|0\.11",
            channels=lambda scale, mean, spread: LATENT_SCALES["flux"],
        ),
    ),
    "sn-nse-01": (
        "pipeline",
        "utensils/mold#1055, its second",
        wrong_parts(
            "noising/flow-*",
            "start|latent|noise",
            r"twice|again|once more|sigma\^2|squared|two times|\*\* ?2|mixed",
            start=_mixed_twice,
        ),
    ),
    "sn-cfg-02": ("pipeline", "vllm-project/vllm-omni#6146, a rescale's deviation over padded sound", None),
    "sn-cch-01": ("pipeline", "vllm-project/vllm-omni#4660, BAGEL", None),
    "sn-cch-02": ("pipeline", "sgl-project/sglang#36767, a cache that a request finds full", None),
    "sn-nse-02": ("pipeline", "Comfy-Org/ComfyUI#13770, a generator that others seed", None),
    "sn-req-01": ("pipeline", "mflux-community/mflux#439, an adapter of one of two transformers", None),
    "sn-lora-01": (
        "loader",
        "invoke-ai/InvokeAI#9517",
        wrong_answer(
            "adapter/dora-peft-square",
            "merged",
            "column|row|axis|axes|inputs?|magnitude.*(along|of)|other (axis|way)|transpos|reshape",
            _magnitudes_of_inputs,
        ),
    ),
}
SEVENTEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
