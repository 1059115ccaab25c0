"""The engine ComfyUI, asked through its API: /prompt, /history, /view.

    comfyui:URL[:PROFILE]   as comfyui:http://127.0.0.1:8188, or ...:8188:torch-bf16

PROFILE names the numerics under which the server computes; the default is torch-f32 on a CPU, else torch-f16. The
workflow is built from ComfyUI's own nodes. Latents and layers: examples/comfyui.
"""

import time
import urllib.parse
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

import numpy as np

from refsd.conventions import CARDS
from refsd.engines.http_client import HttpClient
from refsd.engines.served_pictures import PROBE, how_to_load, pixels_of, request_of, split_argument, weights_name
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import EngineDied, EngineFailure, EngineSearch, NoDeviations
from refsd.numerics.printable import printable
from refsd.numerics.profiles import PROFILES, TORCH_F16, TORCH_F32, Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.pipelines.settings import Settings
from refsd.samplers.schedules import SCHEDULES

EXAMPLE = "comfyui:http://127.0.0.1:8188"
_CARD = CARDS["comfyui"]
_PAUSES = 0.1, 2.0  # seconds between two looks at the history, at first and at most
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


class ComfyuiEngine(NoDeviations):
    """Answer picture cases by a workflow. Raises EngineFailure if no ComfyUI answers."""

    name = "comfyui"

    def __init__(self, client: HttpClient, profile: str = ""):
        self._client = client
        stats = client.has("/system_stats", PROBE)
        system = stats.get("system") if isinstance(stats, dict) else None
        if not isinstance(system, dict) or "comfyui_version" not in system:
            raise EngineFailure(f"{client.address} is no ComfyUI: it has no /system_stats with a comfyui_version")
        devices = stats.get("devices") or [{}]
        kind = str(devices[0].get("type", "")) if isinstance(devices[0], dict) else ""
        usual = TORCH_F32 if kind == "cpu" else TORCH_F16
        self._numerics = PROFILES[profile] if profile else usual
        self.version = printable(f"{system['comfyui_version']} on {kind or 'an unknown device'}", 80)
        self._nodes = client.json("/object_info", timeout=PROBE)
        missing = [name for name in NODES if name not in self._nodes] if isinstance(self._nodes, dict) else NODES
        if missing:
            raise EngineFailure(f"{client.address}: this ComfyUI has no node {', '.join(missing)}")

    def refuses(self, case: Case) -> str | None:
        request = request_of(case)
        if isinstance(request, str):
            return request
        assert case.model is not None
        settings = request.settings
        if self._checkpoint(case.model) is None:
            return f"ComfyUI lists no checkpoint {weights_name(case.model)}: {how_to_load(case.model)}"
        if settings.rng != "cpu":
            return f"ComfyUI draws its noise with torch's CPU generator, not with {settings.rng}"
        if settings.sampler not in SAMPLERS or settings.sampler in _CARD.discarding:
            return f"ComfyUI has no sampler that is refsd's {settings.sampler}"
        if settings.eta is not None:
            return "KSampler has no eta"
        if settings.sigmas is not None:
            return None if SIGMAS_NODE in self._nodes else f"this ComfyUI has no node {SIGMAS_NODE}: update it"
        if CARDS[request.first_noise].first is not _CARD.first:
            return "at the highest level ComfyUI scales the first noise by sqrt(sigma^2 + 1)"
        known = scheduler_of(settings.schedule or "")
        return None if known else f"ComfyUI has no scheduler that is refsd's {settings.schedule}"

    def numerics(self, case: Case) -> Numerics:
        return self._numerics

    def run(self, case: Case, inputs: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
        request = request_of(case)
        assert not isinstance(request, str) and case.model is not None
        graph = workflow(request.settings, self._checkpoint(case.model) or "")
        queued = self._client.json("/prompt", {"prompt": graph, "client_id": "refsd"})
        prompt = queued.get("prompt_id") if isinstance(queued, dict) else None
        if not isinstance(prompt, str):
            raise EngineFailure(f"{self._client.address}/prompt gives no prompt_id")
        image = self._drawn(prompt)
        where = urllib.parse.urlencode({key: str(image.get(key, "")) for key in ("filename", "subfolder", "type")})
        data = self._client.bytes(f"/view?{where}")
        settings = request.settings
        return pixels_of(data, settings.width, settings.height, self._client.address, cut_off=True)

    def _drawn(self, prompt: str) -> dict[str, Any]:
        """Wait for the workflow. -> where the picture is. Raises EngineFailure with the failing node's words."""
        until, pause = time.monotonic() + self._client.timeout, _PAUSES[0]
        place = f"/history/{urllib.parse.quote(prompt, safe='')}"
        while time.monotonic() < until:
            history = self._client.json(place)
            entry = history.get(prompt) if isinstance(history, dict) else None
            if isinstance(entry, dict):
                return _picture(entry, self._client.address)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        self._client.bytes("/queue", {"delete": [prompt]}, PROBE)
        raise EngineDied(f"{self._client.address} did not draw within {self._client.timeout:.0f} s")

    def _checkpoint(self, model: ModelRecipe) -> str | None:
        """ComfyUI's name of the file with a model's weights, perhaps in a folder of its own."""
        try:
            names = self._nodes["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0]
        except (KeyError, IndexError, TypeError):
            return None
        wanted = weights_name(model)
        return next((str(name) for name in names if PureWindowsPath(str(name)).stem == wanted), None)


def _picture(entry: dict[str, Any], address: str) -> dict[str, Any]:
    """Read an entry of the history. Raises EngineFailure if the workflow failed or left no picture."""
    status = entry.get("status") or {}
    if status.get("status_str") == "error":
        errors = [of for kind, of in status.get("messages", ()) if kind == "execution_error"]
        said = f"{errors[0].get('node_type')}: {errors[0].get('exception_message')}" if errors else "an error"
        raise EngineFailure(f"{address}: {said}")
    images = entry.get("outputs", {}).get(PICTURE, {}).get("images") or []
    if not images:
        raise EngineFailure(f"{address}: the workflow ended without a picture")
    return images[0]


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


def find(path: str | None = None, timeout: float = 1800.0, **_) -> list[EngineSearch]:
    """Look for the server at URL[:PROFILE]."""
    if not path:
        return [EngineSearch("comfyui", None, f"give {EXAMPLE}, the address of a server")]
    url, profile = split_argument(path, "")
    try:
        return [EngineSearch("comfyui", ComfyuiEngine(HttpClient(url, timeout), profile))]
    except EngineFailure as error:
        return [EngineSearch("comfyui", None, str(error))]
