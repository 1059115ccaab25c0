"""Build the workflow of a picture case from ComfyUI's own nodes."""

from typing import Any

from refsd.pipelines.settings import Settings
from refsd.samplers.conventions import CARDS
from refsd.samplers.schedules import SCHEDULES

# refsd's sampler -> ComfyUI's; those that draw noise take it from a generator of their own.
SAMPLERS = {
    "euler": "euler",
    "heun": "heun",
    "heunpp2": "heunpp2",
    "lms": "lms",
    "dpm++2m": "dpmpp_2m",
    "ipndm": "ipndm",
    "ipndm_v": "ipndm_v",
    "deis": "deis",
    "res_multistep": "res_multistep",
    "euler_ge": "gradient_estimation",
}
SIGMAS_NODE = "ManualSigmas"
PICTURE = "picture"
# Nodes that every workflow has.
NODES = ("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode", "PreviewImage")


def scheduler_of(schedule: str) -> str | None:
    """Return ComfyUI's name of a schedule; None if it has none that is refsd's."""
    rule = SCHEDULES.get(schedule)
    return next((name for name, other in CARDS["comfyui"].schedules.items() if other is rule), None)


def workflow(settings: Settings, checkpoint: str) -> dict[str, Any]:
    """Build the graph: node id -> class_type and inputs. A pair [id, n] is the nth output of another node.

    checkpoint: ComfyUI's name of the file with the weights
    """
    clip = ["skip", 0] if settings.clip_skip is not None else ["weights", 1]
    graph = {
        "weights": _node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "cond": _node("CLIPTextEncode", text=settings.prompt, clip=clip),
        "uncond": _node("CLIPTextEncode", text=settings.negative_prompt, clip=clip),
        "empty": _node("EmptyLatentImage", width=settings.width, height=settings.height, batch_size=1),
        "image": _node("VAEDecode", samples=["latent", 0], vae=["weights", 2]),
        # PreviewImage writes to a folder that ComfyUI empties, SaveImage to the user's.
        PICTURE: _node("PreviewImage", images=["image", 0]),
    }
    common = {
        "model": ["weights", 0],
        "cfg": settings.cfg_scale,
        "positive": ["cond", 0],
        "negative": ["uncond", 0],
        "latent_image": ["empty", 0],
    }
    sampler = SAMPLERS[settings.sampler or ""]
    if settings.clip_skip is not None:
        graph["skip"] = _node("CLIPSetLastLayer", clip=["weights", 1], stop_at_clip_layer=-settings.clip_skip)
    if settings.sigmas is None:
        schedule = {"scheduler": scheduler_of(settings.schedule or ""), "steps": settings.steps, "denoise": 1.0}
        graph["latent"] = _node("KSampler", seed=settings.seed, sampler_name=sampler, **schedule, **common)
    else:
        text = ", ".join(repr(sigma) for sigma in settings.sigmas)
        graph["sigmas"] = _node(SIGMAS_NODE, sigmas=text)
        graph["sampler"] = _node("KSamplerSelect", sampler_name=sampler)
        chosen = {"sampler": ["sampler", 0], "sigmas": ["sigmas", 0], "noise_seed": settings.seed}
        graph["latent"] = _node("SamplerCustom", add_noise=True, **chosen, **common)
    return graph


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}
