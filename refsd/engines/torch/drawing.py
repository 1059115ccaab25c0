"""Draw a whole picture with diffusers' own pipeline, from a folder, and record its tensors on the way.

For SD 1, SD 2, SDXL and SD 3: other pipelines pack their latents.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from refsd.engines.torch.engine import HOW_TO_GET, arrays, quietly
from refsd.golden.engine import EngineFailure
from refsd.pipelines.plan import Plan
from refsd.pipelines.settings import Settings

# The pipelines, and the attribute that holds the network.
_PIPELINES = {
    "StableDiffusionPipeline": "unet",
    "StableDiffusionXLPipeline": "unet",
    "StableDiffusion3Pipeline": "transformer",
}
# Settings that a folder's scheduler decides.
_OWN = {"sampler": "--sampling-method", "schedule": "--scheduler"}


def draw(folder: Path, dtype: str, settings: Settings, plan: Plan) -> dict[str, np.ndarray]:
    """Draw with the folder's pipeline -> tensors, by the names of refsd/disagreement/picture_runs.py.

    dtype: torch's name of the type of weights and latents
    plan:  the same settings, resolved by refsd

    Raises EngineFailure without diffusers, for a folder that holds another pipeline, and for settings that are the
    folder's own.
    """
    given = [flag for name, flag in _OWN.items() if getattr(settings, name) is not None]
    if given:
        raise EngineFailure(f"diffusers draws with the folder's own scheduler: leave out {given[0]}")
    index = folder / "model_index.json"
    if not index.is_file():
        raise EngineFailure(f"{folder}: diffusers draws from a folder with model_index.json")
    try:
        components = dict(json.loads(index.read_text()))
    except (OSError, ValueError, TypeError):
        raise EngineFailure(f"{index}: no list of components in JSON") from None
    # SD 3 may lack T5: from_pretrained wants to be told.
    absent = {name: None for name, kind in components.items() if kind == [None, None]}
    try:
        import torch
        from diffusers import DiffusionPipeline
    except ImportError as error:
        raise EngineFailure(f"{error.name} is missing: {HOW_TO_GET}") from None
    with quietly(), torch.inference_mode():
        try:
            pipe: Any = DiffusionPipeline.from_pretrained(
                folder, torch_dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True, **absent
            )
        except (OSError, ValueError, ImportError) as error:
            raise EngineFailure(f"{folder}: {str(error).splitlines()[0]}") from None
        name = type(pipe).__name__
        if name not in _PIPELINES:
            raise EngineFailure(f"how to look into {name} is not known here: {', '.join(_PIPELINES)} are")
        pipe.set_progress_bar_config(disable=True)
        with _recorded(pipe, getattr(pipe, _PIPELINES[name]), plan.guided) as tensors:
            pipe(
                prompt=settings.prompt,
                negative_prompt=settings.negative_prompt if plan.guided else None,
                width=plan.width,
                height=plan.height,
                num_inference_steps=plan.steps,
                guidance_scale=plan.cfg_scale,
                clip_skip=settings.clip_skip,
                generator=torch.Generator("cpu").manual_seed(plan.seeds[0]),
                output_type="pt",
            )
    return tensors


@contextmanager
def _recorded(pipe: Any, network: Any, guided: bool) -> Iterator[dict[str, np.ndarray]]:
    """Record the calls of the network, each step of the scheduler, and the decoder's output inside the block."""
    tensors: dict[str, np.ndarray] = {}
    calls = steps = 0
    parameters = inspect.signature(network.forward)
    step = pipe.scheduler.step

    def called(module: Any, args: tuple, named: dict, output: Any) -> None:
        nonlocal calls
        given = parameters.bind(*args, **named).arguments
        x = given.get("sample", given.get("hidden_states"))
        conditions = ("uncond", "cond") if guided else ("cond",)
        for which, state, y in zip(conditions, given["encoder_hidden_states"], output[0], strict=True):
            tensors.setdefault(which, arrays(state[None]))
            tensors[f"calls.{calls}.{which}"] = arrays(y[None])
        for which, pooled in zip(conditions, given.get("pooled_projections", ()), strict=False):
            tensors.setdefault(f"{which}.y", arrays(pooled[None]))
        tensors[f"calls.{calls}.x"] = arrays(x[-1:])
        tensors[f"calls.{calls}.timesteps"] = arrays(given["timestep"]).reshape(-1)[-1:].astype(np.float64)
        calls += 1

    def stepped(model_output: Any, t: Any, sample: Any, *args: Any, **named: Any) -> Any:
        nonlocal steps
        answer = step(model_output, t, sample, *args, **named)
        if hasattr(pipe.scheduler, "sigmas"):  # else the latents have another scale
            tensors[f"steps.{steps}.x"] = arrays(sample)
        tensors["latent"] = arrays(answer[0])
        steps += 1
        return answer

    def decoded(module: Any, args: tuple, output: Any) -> None:
        tensors["image"] = arrays(output)

    hooks = [
        network.register_forward_hook(called, with_kwargs=True),
        pipe.vae.decoder.register_forward_hook(decoded),
    ]
    pipe.scheduler.step = stepped
    try:
        yield tensors
    finally:
        del pipe.scheduler.step
        for hook in hooks:
            hook.remove()
    if hasattr(pipe.scheduler, "sigmas"):
        tensors["sigmas"] = arrays(pipe.scheduler.sigmas)[:-1].astype(np.float64)
