"""Noise levels by diffusers' schedulers and pipelines."""

import inspect
from collections.abc import Set
from types import SimpleNamespace
from typing import Any

from refsd.engines.torch.stages.torch_stage import SD, Params, TorchStage

_SPACINGS = "leading", "trailing", "linspace", "leading_multistep", "linspace_multistep"
_LAST = {"zero": "zero", "lowest": "sigma_min"}
_FLOWS = "flow_uniform", "flow_linspace"
_SHIFTS = "flux", "flux-schnell", "flux2", "qwen-image"
# Of Qwen/Qwen-Image's scheduler_config.json.
_QWEN_IMAGE = {"base_image_seq_len": 256, "max_image_seq_len": 8192, "base_shift": 0.5, "max_shift": 0.9}


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["engine"] not in ("diffusers", "k-diffusion"):
        return f"diffusers does not follow {p['engine']}'s convention"
    if p["engine"] == "k-diffusion" and p["steps"] == 1:
        return "diffusers' Karras schedule of one step begins at the lowest level, k-diffusion's at the highest"
    known = {"sd": (*_SPACINGS, "karras"), "sd-zero-snr": _SPACINGS, "flow": _FLOWS}
    known["flow"] += ("given",) * (p["engine"] == "diffusers")  # whose schedulers shift given ones, too
    known |= {**dict.fromkeys(_SHIFTS, ("flow_uniform",)), "qwen-image": ("flow_terminal",)}
    if p["schedule"] not in known.get(p["levels"], ()):
        return f"no scheduler of diffusers that refsd knows spaces {p['levels']} levels as {p['schedule']}"
    return None


def _of_levels(torch, p: Params):
    """Return a scheduler of trained levels, with its timesteps set."""
    from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler

    spacing, _, multistep = p["schedule"].partition("_")
    kind = DPMSolverMultistepScheduler if multistep else EulerDiscreteScheduler
    own = {"use_karras_sigmas": True, "timestep_spacing": "linspace"} if spacing == "karras" else {}
    options = {"timestep_spacing": spacing, "steps_offset": p["options"].get("offset", 0), **own}
    options["final_sigmas_type"] = _LAST[p["last"]]
    scheduler = kind(**SD, **options, rescale_betas_zero_snr=p["levels"] == "sd-zero-snr")
    scheduler.set_timesteps(p["steps"])
    return scheduler


def _of_a_flow(torch, p: Params):
    import numpy as np
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift
    from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

    n = p["steps"]
    given = {"sigmas": np.array(p["options"].get("sigmas", np.linspace(1.0, 1 / n, n))[:n])}
    given = given if p["schedule"] in ("flow_uniform", "flow_terminal", "given") else {}
    if p["levels"] in ("flow", "flux-schnell"):
        shift = p["shift"] if p["levels"] == "flow" else 1.0  # FLUX.1-schnell's scheduler_config.json
        scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        scheduler.set_timesteps(n, **given)
        return scheduler
    terminal = {"shift_terminal": p["options"]["terminal"]} if p["levels"] == "qwen-image" else {}
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **terminal)
    if p["levels"] == "flux":
        mu = calculate_shift(p["tokens"], max_shift=1.15)
    elif p["levels"] == "qwen-image":
        mu = calculate_shift(p["tokens"], *_QWEN_IMAGE.values())
    else:
        mu = compute_empirical_mu(p["tokens"], n)
    scheduler.set_timesteps(n, mu=mu, **given)
    return scheduler


def _begun_late(scheduler, p: Params) -> int:
    """Return the number of steps that an img2img pipeline skips."""
    from diffusers import FluxImg2ImgPipeline, StableDiffusionImg2ImgPipeline

    pipeline = FluxImg2ImgPipeline if p["levels"] == "flow" else StableDiffusionImg2ImgPipeline
    wanted = {"num_inference_steps": p["steps"], "strength": p["strength"], "device": "cpu"}
    assert wanted.keys() <= inspect.signature(pipeline.get_timesteps).parameters.keys()
    timesteps, _ = pipeline.get_timesteps(SimpleNamespace(scheduler=scheduler), **wanted)
    return p["steps"] - len(timesteps)


def _run(torch, t, p: Params) -> dict[str, Any]:
    flow = p["levels"] in ("flow", *_SHIFTS)
    scheduler = (_of_a_flow if flow else _of_levels)(torch, p)
    first = _begun_late(scheduler, p) if p["strength"] < 1 else 0
    times = scheduler.timesteps[first:]
    # FLUX's pipelines divide the timesteps by 1000, the number of trained steps.
    return {"sigmas": scheduler.sigmas[first:], "timesteps": times / 1000 if p["levels"] in _SHIFTS else times}


STAGES = {"stage/sigmas": TorchStage("diffusers", _refuses, _run)}
