"""Run a pipeline of diffusers once, and keep the first call of each of its networks. Needs torch and diffusers."""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from refsd.adoption.capture import programs, quiet, refused
from refsd.golden.wording import needing
from refsd.numerics.errors import BadInput

# What is asked of a folder; names that its pipeline does not take are left out. From fewer steps than four the rule
# of its noise levels does not follow. The sides differ, and are multiples of 64.
_REQUEST = {"prompt": "a lovely cat", "num_inference_steps": 4, "height": 128, "width": 192}
# Beside forward, the methods of a network that pipelines call.
_METHODS = ("encode", "decode")


class Call(NamedTuple):
    """
    run:  the network's method
    call: its arguments by name
    """

    module: torch.nn.Module
    run: Callable[..., Any]
    call: dict[str, Any]

    @contextlib.contextmanager
    def as_forward(self) -> Iterator[torch.nn.Module]:
        """Yield the module, whose forward is this method in the block."""
        if self.run.__name__ == "forward":
            yield self.module
            return
        self.module.forward = self.run
        try:
            yield self.module
        finally:
            del self.module.forward


class Recorded(NamedTuple):
    """
    calls:     "transformer", "vae.decode" -> its first call, in the order of the run
    sigmas:    [steps + 1] of the scheduler after the run, and [steps] timesteps; empty where it has none
    scheduler: its class
    made:      the pipeline's class, and the programs that ran it
    """

    calls: dict[str, Call]
    sigmas: np.ndarray
    timesteps: np.ndarray
    scheduler: str
    made: dict[str, str]


def opened(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the pipeline of a folder in float32, and a short request. No code and no pickle of the folder is run.

    Raises BadInput.
    """
    with needing(["diffusers"], "adopt", f"{folder}: a pipeline"):
        diffusers = importlib.import_module("diffusers")
    with refused(f"diffusers cannot load {folder}"), quiet():
        pipe = diffusers.DiffusionPipeline.from_pretrained(
            folder, torch_dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
    taken = inspect.signature(pipe.__call__).parameters
    request = {name: value for name, value in _REQUEST.items() if name in taken}
    if "generator" in taken:
        request["generator"] = torch.Generator().manual_seed(0)
    plain = {
        name for name, one in taken.items() if (one.default, one.kind) == (one.empty, one.POSITIONAL_OR_KEYWORD)
    }
    if missing := sorted(plain - request.keys()):
        raise BadInput(
            f"{folder}: {type(pipe).__name__} also takes {', '.join(missing)}: adopt FILE.py:FUNCTION instead, a "
            "function that returns the pipeline and its arguments"
        )
    return pipe, request


def is_pipeline(built: Any) -> bool:
    return isinstance(getattr(built, "components", None), Mapping) and callable(built)


def recorded(pipe: Any, request: Mapping[str, Any]) -> Recorded:
    """Run a pipeline. Raises BadInput where it fails, or calls no network."""
    calls: dict[str, Call] = {}
    running = refused(f"torch cannot run {type(pipe).__name__}")
    with contextlib.ExitStack() as stack, running, torch.no_grad(), quiet():
        for name, part in pipe.components.items():
            if isinstance(part, torch.nn.Module):
                stack.enter_context(_listening(name, part, calls))
        pipe.set_progress_bar_config(disable=True)
        pipe(**request)
    if not calls:
        raise BadInput(f"{type(pipe).__name__}: its run called no network")
    scheduler = getattr(pipe, "scheduler", None)
    return Recorded(calls, *noise_levels(scheduler), type(scheduler).__name__, programs(pipe))


def noise_levels(scheduler: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the sigmas and timesteps of a scheduler after a run, a level that it runs twice once.

    DDIM and PNDM have none: they are sqrt((1 - a) / a) of alphas_cumprod a. At order 2 every odd one is no level's.
    """
    timesteps = np.asarray(getattr(scheduler, "timesteps", ()), np.float64)
    sigmas, shares = (getattr(scheduler, name, None) for name in ("sigmas", "alphas_cumprod"))
    if sigmas is None and shares is not None:
        at = np.asarray(shares, np.float64)[timesteps.astype(int)]
        a = np.append(at, float(getattr(scheduler, "final_alpha_cumprod", 1.0)))
        sigmas = np.sqrt((1 - a) / a)
    sigmas = np.asarray(() if sigmas is None else sigmas, np.float64)
    second = getattr(scheduler, "order", 1) == 2
    if len(sigmas) != len(timesteps) + 1 and not (second and len(sigmas) > len(timesteps)):
        return sigmas, timesteps
    own = np.arange(len(timesteps)) % 2 == 0 if second else np.append(True, np.diff(timesteps) != 0)
    return np.append(sigmas[: len(own)][own], sigmas[-1]), timesteps[own]


@contextlib.contextmanager
def _listening(name: str, part: torch.nn.Module, calls: dict[str, Call]) -> Iterator[None]:
    """Keep the first call of each of a network's methods, but not those that another of them makes."""
    running: list[str] = []

    def listen(key: str, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if key not in calls and not running:
            given = _by_name(own, args, kwargs)
            given = {name: x for name, x in given.items() if not isinstance(x, torch.Generator)}
            calls[key] = Call(part, own, pytree.tree_map_only(torch.Tensor, torch.clone, given))
        running.append(key)
        try:
            return own(*args, **kwargs)
        finally:
            running.pop()

    methods = ["forward", *(method for method in _METHODS if hasattr(part, method))]
    for method in methods:
        key = name if method == "forward" else f"{name}.{method}"
        setattr(part, method, functools.partial(listen, key, getattr(part, method)))
    try:
        yield
    finally:
        for method in methods:
            delattr(part, method)


def _by_name(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs).arguments
    others = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
    return {**{name: x for name, x in bound.items() if name != others}, **bound.get(others, {})}
