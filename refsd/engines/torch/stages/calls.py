"""Calls of solvers that start from a given picture, by diffusers' schedulers and img2img pipeline."""

import inspect
from collections.abc import Set
from types import SimpleNamespace
from typing import Any

from refsd.engines.torch.stages.torch_stage import SD, Params, TorchStage

_SPACINGS = {
    "heun": ("leading", "trailing", "linspace"),
    "dpm++2m": ("leading_multistep", "linspace_multistep"),
}


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["engine"] != "diffusers":
        return f"diffusers does not follow {p['engine']}'s rule"
    known = p["spacing"] in _SPACINGS.get(p["solver"], ())
    return None if known else f"diffusers does not space {p['solver']} as {p['spacing']}, or has no such solver"


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import DPMSolverMultistepScheduler, HeunDiscreteScheduler, StableDiffusionImg2ImgPipeline

    multistep = p["solver"] == "dpm++2m"
    kind = DPMSolverMultistepScheduler if multistep else HeunDiscreteScheduler
    scheduler = kind(**SD, timestep_spacing=p["spacing"].partition("_")[0], steps_offset=1)
    scheduler.set_timesteps(p["steps"])
    begin = StableDiffusionImg2ImgPipeline.get_timesteps
    wanted = {"num_inference_steps": p["steps"], "strength": p["strength"], "device": "cpu"}
    assert wanted.keys() <= inspect.signature(begin).parameters.keys()
    timesteps, _ = begin(SimpleNamespace(scheduler=scheduler), **wanted)
    orders, sigmas, x = [], [], torch.ones(1, 1, 1, 1)
    for order, name in ((1, "dpm_solver_first_order_update"), (2, "multistep_dpm_solver_second_order_update")):
        right = getattr(scheduler, name, None)
        if right is not None:
            setattr(
                scheduler, name, lambda *a, order=order, right=right, **k: (orders.append(order), right(*a, **k))[1]
            )
    # A picture of zeros with a noise of ones gives the noise level.
    noised = scheduler.add_noise(0 * x, x, timesteps[:1])
    if multistep:
        noised = noised / (1 - noised**2).sqrt()
    for time in timesteps:
        scheduler.scale_model_input(x, time)
        if scheduler.step_index is None:
            scheduler._init_step_index(time)
        sigmas.append(scheduler.sigmas[scheduler.step_index])
        x = scheduler.step(torch.zeros_like(x), time, x).prev_sample
    found = {"sigmas": torch.stack(sigmas), "timesteps": timesteps, "begin": noised.flatten()}
    return {**found, "order": torch.tensor(orders)} if multistep else found


STAGES = {"stage/calls": TorchStage("diffusers", _refuses, _run)}
