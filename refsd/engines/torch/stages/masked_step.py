"""One inpainting step of a batch by diffusers' pipeline, image processor and schedulers."""

from collections.abc import Set
from types import SimpleNamespace
from typing import Any

from refsd.engines.torch.stages.torch_stage import SD, Params, TorchStage


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    return None if p["engine"] == "diffusers" else f"diffusers does not mask as {p['engine']} does"


def _scheduler(torch, p: Params):
    from diffusers import EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler

    if p["space"] == "flow":
        scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
        scheduler.set_timesteps(sigmas=[p["sigma"], p["sigma_next"]])
    else:
        scheduler = EulerDiscreteScheduler(**SD)
        scheduler.set_timesteps(sigmas=[p["sigma"], p["sigma_next"], 0.0])
    return scheduler


def _run(torch, t, p: Params) -> dict[str, Any]:
    """Run the pipelines' code from the mask to the next step; the mixing repeats a line of their denoising loop."""
    from diffusers import StableDiffusionInpaintPipeline
    from diffusers.image_processor import VaeImageProcessor

    latent, noise, x = t["latent"], t["noise"], t["x"]
    N, (height, width) = len(x), t["mask"].shape[2:]
    processor = VaeImageProcessor(
        vae_scale_factor=height // x.shape[2], do_normalize=False, do_binarize=True, do_convert_grayscale=True
    )
    pixels = processor.preprocess(t["mask"], height, width)
    pipe = SimpleNamespace(vae_scale_factor=height // x.shape[2])
    prepare = StableDiffusionInpaintPipeline.prepare_mask_latents
    given = latent if latent.shape[1] == 4 else torch.cat([latent] * 2, dim=1)[:, :4]  # four channels pass through
    mask, _ = prepare(pipe, pixels, given, N, height, width, x.dtype, x.device, None, False)
    latent = latent.repeat(N // len(latent), 1, 1, 1)

    scheduler = _scheduler(torch, p)
    now, then = scheduler.timesteps[:2]
    velocity = (x - t["denoised"]) / p["sigma"]
    left = scheduler.step(velocity, now, x).prev_sample
    if p["space"] == "flow":
        around = scheduler.scale_noise(latent, then[None], noise)
    else:
        around = scheduler.add_noise(latent, noise, then[None])
    left = (1 - mask) * around + mask * left
    return {"latent_mask": mask, "shown": x, "denoised": t["denoised"], "left": left}


STAGES = {"stage/masked_step": TorchStage("diffusers", _refuses, _run)}
