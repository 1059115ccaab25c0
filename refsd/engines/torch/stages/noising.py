"""Initial latents by torch's generator and diffusers' schedulers."""

from collections.abc import Set
from typing import Any

from refsd.engines.torch.stages.torch_stage import SD, Params, TorchStage


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if "channel_mean" in inputs:
        return "diffusers' schedulers normalise no channels"
    return None if p["rng"] == "cpu" else f"torch on a CPU draws no {p['rng']} noise"


def _noised(torch, latent, noise, space: str, sigma: float):
    from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler

    if space == "flow":
        scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
        scheduler.set_timesteps(sigmas=[sigma])
        return scheduler.scale_noise(latent, scheduler.timesteps[:1], noise)
    if space == "ve":
        scheduler = EulerDiscreteScheduler(**SD)
        scheduler.set_timesteps(sigmas=[sigma, 0.0])
        return scheduler.add_noise(latent, noise, scheduler.timesteps[:1])
    scheduler = DPMSolverMultistepScheduler(**SD)
    scheduler.sigmas, scheduler.timesteps = torch.tensor([sigma, 0.0]), torch.tensor([500])
    return scheduler.add_noise(latent, noise, scheduler.timesteps)


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers.utils.torch_utils import randn_tensor

    latent = t["latent"]
    seeds = [p["seed"]] if p["one_stream"] else [p["seed"] + b for b in range(len(latent))]
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]

    def drawn():
        return randn_tensor(latent.shape, generators[0] if p["one_stream"] else generators, dtype=latent.dtype)

    noise = drawn()
    later = torch.stack([drawn() for _ in range(p["draws"])])
    start = _noised(torch, latent, noise, p["space"], p["sigma"])
    return {"noise": noise, "start": start, "step_noise": later}


STAGES = {"stage/noising": TorchStage("diffusers", _refuses, _run)}
