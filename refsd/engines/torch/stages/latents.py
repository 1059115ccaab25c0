"""Latents by diffusers' SDXL pipeline: what it does before and after the autoencoder."""

from collections.abc import Set
from types import SimpleNamespace
from typing import Any

from refsd.engines.torch.stages.torch_stage import Params, TorchStage
from refsd.models.vae.latents import LATENT_SCALES


def _refuses(p: Params, inputs: Set[str]) -> str | None:
    if p["kind"] != "vae" or not p["scaled"]:
        return "diffusers' SDXL pipeline scales latents of AutoencoderKL"
    return (
        None if "channel_mean" in inputs and p["family"] == "sdxl" else "of the autoencoders with statistics alone"
    )


def _run(torch, t, p: Params) -> dict[str, Any]:
    from diffusers import StableDiffusionXLImg2ImgPipeline
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
    from diffusers.pipelines.stable_diffusion_xl import pipeline_stable_diffusion_xl_img2img as page

    shown = {}

    def encode(picture):
        shown["picture"] = picture
        posterior = DiagonalGaussianDistribution(t["moments"])
        posterior.sample = lambda generator=None: posterior.mean + posterior.std * t["noise"]
        return SimpleNamespace(latent_dist=posterior)

    config = SimpleNamespace(
        latents_mean=t["channel_mean"].tolist(),
        latents_std=t["channel_spread"].tolist(),
        scaling_factor=LATENT_SCALES["sdxl"].factor,
        force_upcast=False,
    )
    pipe = SimpleNamespace(
        vae=SimpleNamespace(config=config, encode=encode),
        device="cpu",
        text_encoder_2=None,
        final_offload_hook=None,
    )
    mode = "sample" if p["draw"] else "argmax"
    right = page.retrieve_latents
    page.retrieve_latents = lambda output, generator=None, sample_mode="sample": right(output, None, mode)
    try:
        latent = StableDiffusionXLImg2ImgPipeline.prepare_latents(
            pipe, t["picture"], None, len(t["picture"]), 1, t["picture"].dtype, "cpu", add_noise=False
        )
    finally:
        page.retrieve_latents = right
    return {"shown_picture": shown["picture"], "latent": latent, **_decoded(torch, t, config)}


def _decoded(torch, t, config) -> dict[str, Any]:
    """Repeat the end of the pipeline's __call__, which is no separate function, without the autoencoder."""
    mean, deviation = (torch.tensor(y).view(1, -1, 1, 1) for y in (config.latents_mean, config.latents_std))
    shown = t["latent"] * deviation / config.scaling_factor + mean
    return {"shown_latent": shown, "picture": t["decoded"]}


STAGES = {"stage/latents": TorchStage("diffusers", _refuses, _run)}
