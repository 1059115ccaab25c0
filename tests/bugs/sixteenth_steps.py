"""A sixteenth fresh set, of samplers, guidance, requests and files: drawn before a look at the judge."""

import itertools
import math

import numpy as np
from held_out import HeldOut
from injected_files import _plain_lora, alpha_of, modules_of, product_of
from injected_steps import sampled
from injection import wrong_answer, wrong_parts

from refsd.samplers.guidance import guide
from refsd.stages.adapter_rule import strength_of

# --- samplers ----------------------------------------------------------------------------------------------------


def _ancestral(model, x, sigmas, draws, eta, taken):
    """Euler with fresh noise. taken: variance of eta 1, eta -> what the level squared is lowered by"""
    for sigma, to in itertools.pairwise(sigmas.tolist()):
        denoised = model(x, sigma)
        variance = to**2 * (sigma**2 - to**2) / sigma**2
        down = math.sqrt(max(to**2 - taken(variance, eta), 0.0))
        x = x + (x - denoised) / x.dtype.type(sigma) * x.dtype.type(down - sigma)
        if to > 0:
            x = x + next(draws).astype(x.dtype) * x.dtype.type(eta * math.sqrt(variance))
    return x


def _eta_for_its_square(model, x, sigmas, draws, case):
    """The direction is scaled by 1 - a - eta variance; the noise by eta and the deviation, as it should."""
    return _ancestral(model, x, sigmas, draws, case.params["eta"], lambda variance, eta: eta * variance)


def _first_noise_again(model, x, sigmas, draws, case):
    """The steps' generator is made anew with the picture's seed: its first numbers are those of the start."""
    again = itertools.chain([x / x.dtype.type(sigmas[0])], itertools.islice(draws, 1, None))
    return _ancestral(model, x, sigmas, again, case.params["eta"], lambda variance, eta: eta**2 * variance)


def _lowest_by_the_steps(params, card, levels):
    """The schedule is a line to 1 / steps, not to 1 / 1000, before the shift."""

    def spaced(n):
        t = np.linspace(1, 1 / n, n)
        return np.append(params["shift"] * t / (1 + (params["shift"] - 1) * t), 0.0)

    return spaced


# --- guidance, masks and requests --------------------------------------------------------------------------------


def _three_channels(cond, uncond, scale):
    """The answer is cut on the wrong axis into what is guided and a rest that is not."""
    return np.concatenate([guide(cond, uncond, scale)[:, :3], cond[:, 3:]], axis=1)


def _first_level(sigma, sigma_next):
    """The schedule's first, whatever the step."""
    return 14.6146 if sigma > 1 else 1.0


def _shortest_for_all(case, values, y):
    """Each prompt's end zeroes what lies behind it in every prompt of the batch."""
    shortest = int((values["t5_mask"] != 0).sum(axis=1).min())
    return {"context": np.where(np.arange(y["context"].shape[1])[:, None] < shortest, y["context"], 0)}


# --- files -------------------------------------------------------------------------------------------------------


_UNSCALED = _plain_lora(lambda parts, modules: 1.0)


def _without_alpha(case, values, y):
    """Neither alpha nor the rank counts. Files with a learned factor are left as they are."""
    return None if any(name.endswith(".scalar") for name in values) else _UNSCALED(case, values, y)


def _by_the_rank(case, values, y):
    """A rank-stabilised adapter is scaled by alpha over the rank."""
    (parts,) = modules_of(values).values()
    factor = case.params["settings"]["lora_alpha"] / len(parts["down"])
    return {"merged": values["weight"] + factor * product_of(parts)}


def _both_factors_exchanged(case, values, y):
    """The halves of the first factor's rows are exchanged, too."""
    (parts,) = modules_of(values).values()
    down = np.roll(parts["down"], len(parts["down"]) // 2, axis=0)
    delta = alpha_of(parts) / len(down) * parts["up"] @ down
    return {"merged": values["weight"] + np.roll(delta, len(delta) // 2, axis=0)}


def _slices_thrown_away(case, values, y):
    """The patched slice is computed and not written back."""
    return {"merged": values["weight"]}


_TABLE = {
    "xv-smp-01": (
        "sampler",
        "inbarhub/DDPM_inversion#12",
        sampled(
            ("euler_a/karras-eta-0.6",),
            r"latent|\bx\b|step",
            r"eta.*(square|root|\^2|\*\* ?2|not squared)|sqrt\(eta|eta\b",
            _eta_for_its_square,
        ),
    ),
    "xv-smp-02": (
        "sampler",
        "Comfy-Org/ComfyUI#9819",
        sampled(
            ("euler_a/karras", "euler_a/exponential"),
            r"latent|\bx\b|step|noise",
            "noise.*(again|start|first|initial|same|begin|twice|0)|(start|first|initial).*noise|latent's noise",
            _first_noise_again,
        ),
    ),
    "xv-smp-03": (
        "sampler",
        "NVIDIA/TensorRT-Model-Connect#473",
        wrong_parts(
            "sigmas/flow-linspace-*",
            "sigmas|timesteps",
            r"flow_uniform|1 / (n|steps|7)|steps.*(1000|trained)|lowest|least|ends? at|last",
            spacing=_lowest_by_the_steps,
        ),
    ),
    "xv-smp-04": ("sampler", "vllm-project/vllm-omni#4470, BAGEL", None),
    "xv-smp-05": ("sampler", "vllm-project/vllm-omni#7951, GLM-Image", None),
    "xv-smp-06": ("sampler", "huggingface/diffusers#11612, a shortcut that UniPC's own code has", None),
    "xv-smp-07": ("sampler", "deepinv/deepinv#1343, a continuous process", None),
    "xv-smp-08": ("sampler", "Haoming02/sd-webui-forge-classic#93, CFG++ with a scale of 1", None),
    "xv-smp-09": ("sampler", "kijai/ComfyUI-WanVideoWrapper#1510, a list of sigmas", None),
    "xv-cfg-01": (
        "pipeline",
        "microsoft/CogACT#11",
        wrong_parts(
            "guidance/cfg",
            "guided",
            "channel|first 3|part of|only|cond alone|not guided|some",
            plain=_three_channels,
        ),
    ),
    "xv-inp-01": (
        "pipeline",
        "huggingface/diffusers#7386",
        wrong_parts(
            "masked_step/diffusers-*",
            "left|latent|step",
            r"level|sigma|14\.6|first|noise",
            level=_first_level,
        ),
    ),
    "xv-req-01": (
        "pipeline",
        "leejet/stable-diffusion.cpp#1307",
        wrong_parts(
            "requests/*",
            "weight",
            "kept|stay|before|earlier|last|still|none is asked|stale",
            adapters=lambda asked, before: asked or (before.deltas if before else {}),
        ),
    ),
    "xv-req-02": (
        "pipeline",
        "Panchovix/stable-diffusion-webui-reForge#314",
        wrong_parts(
            "requests/*",
            "weight",
            "add(ed)? up|accumulat|stay|kept|on top|before|earlier|sum",
            base=lambda file, before: before.weight if before else file,
        ),
    ),
    "xv-con-01": (
        "pipeline",
        "dreamzero0/dreamzero#71",
        wrong_answer(
            "conditioning/wan",
            "context",
            "shortest|other (prompt|item)|(every|all) (prompt|item)|least|mask.*(first|last|other|both|all)"
            "|length.*(other|all|batch)|batch",
            _shortest_for_all,
        ),
    ),
    "xv-tok-01": ("pipeline", "huggingface/diffusers#12845, LongCat", None),
    "xv-tok-02": ("pipeline", "damian0815/compel#96, compel's pooled vector", None),
    "xv-lora-01": (
        "loader",
        "hao-ai-lab/FastVideo#870",
        wrong_answer("adapter/lora-*", "merged", "alpha", _without_alpha),
    ),
    "xv-lora-02": (
        "loader",
        "NVIDIA/TensorRT-LLM#1668",
        wrong_answer("adapter/lora-peft-rslora", "merged", "rslora|root|sqrt|rank|stabilised", _by_the_rank),
    ),
    "xv-lora-03": (
        "loader",
        "huggingface/diffusers#14001",
        wrong_answer(
            "adapter/lora-halves-exchanged",
            "merged",
            "both (factors|matrices)|down.*(exchang|swap|half|halves)|exchanged.*(down|A\\b|rank)|rank.*halves"
            "|halves of",
            _both_factors_exchanged,
        ),
    ),
    "xv-lora-04": (
        "loader",
        "Comfy-Org/ComfyUI#12717",
        wrong_answer(
            "adapter/lora-fused",
            "merged",
            "not (applied|merged|changed)|left out|ignored|without|unchanged|nothing|never|as it is|is weight",
            _slices_thrown_away,
        ),
    ),
    "xv-lora-05": (
        "loader",
        "ModelTC/LightX2V#691",
        wrong_parts(
            "adapter/lora-*",
            "merged",
            r"strength.*(squar|twice|two times|\^2|\*\* ?2)|squared|twice",
            strength=lambda params: strength_of(params) ** 2,
        ),
    ),
    "xv-ldr-01": (
        "loader",
        "unslothai/unsloth#6978",
        wrong_parts(
            "weights/fp8-scaled-blocks*",
            "weight",
            r"scale.*(not|left out|ignored|\b1\b|missing|never)|without.*scale|unscaled|no scale",
            scaled=lambda values, scale: values,
        ),
    ),
    "xv-ldr-02": ("loader", "NVIDIA/TensorRT-Model-Connect#1115, a last block of scales that is not whole", None),
    "xv-ldr-03": ("loader", "city96/ComfyUI-GGUF#470, weights left as memory is", None),
}
SIXTEENTH_STEPS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
