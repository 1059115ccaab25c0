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
_REQUEST = {
    "prompt": "a lovely cat",
    "negative_prompt": "rain",
    "num_inference_steps": 4,
    "height": 128,
    "width": 192,
}
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


class Answer(NamedTuple):
    """A network's call on the way to a step: its name, arguments and what it gave."""

    name: str
    call: dict[str, Any]
    output: Any


class Step(NamedTuple):
    """A call of the scheduler's step.

    answers: calls of networks since the step before
    given:   the prediction that it is given; time: its timestep; sample: its latent; latent: what it returns
    """

    answers: list[Answer]
    given: Any
    time: float
    sample: Any
    latent: Any


class Recorded(NamedTuple):
    """
    calls:     "transformer", "vae.decode" -> its first call, in the order of the run
    sigmas:    [steps + 1] of the scheduler after the run, and [steps] timesteps; empty where it has none
    steps:     the first two calls of its step, and the last
    scheduler: it
    request:   what the pipeline was asked, with its defaults
    made:      the pipeline's class, and the programs that ran it
    """

    calls: dict[str, Call]
    sigmas: np.ndarray
    timesteps: np.ndarray
    steps: list[Step]
    scheduler: Any
    request: dict[str, Any]
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
    run = _Run()
    running = refused(f"torch cannot run {type(pipe).__name__}")
    scheduler = getattr(pipe, "scheduler", None)
    with contextlib.ExitStack() as stack, running, torch.no_grad(), quiet():
        for name, part in pipe.components.items():
            if isinstance(part, torch.nn.Module):
                stack.enter_context(run.listening(name, part))
        if callable(getattr(scheduler, "step", None)):
            stack.enter_context(run.stepping(scheduler))
        pipe.set_progress_bar_config(disable=True)
        pipe(**request)
    if not run.calls:
        raise BadInput(f"{type(pipe).__name__}: its run called no network")
    taken = inspect.signature(pipe.__call__).parameters.values()
    defaults = {one.name: one.default for one in taken if one.default is not one.empty}
    return Recorded(
        run.calls, *noise_levels(scheduler), run.steps, scheduler, {**defaults, **request}, programs(pipe)
    )


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


class _Run:
    """What is kept of a run while it runs."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.steps: list[Step] = []
        self._running: list[str] = []
        self._answers: list[Answer] = []

    @contextlib.contextmanager
    def listening(self, name: str, part: torch.nn.Module) -> Iterator[None]:
        """Keep the first call of a network, of its methods, and of modules inside that the pipeline calls."""
        of_part = [(name, part, method) for method in ("forward", *_METHODS) if hasattr(part, method)]
        inside = [(f"{name}.{path}", one, "forward") for path, one in part.named_modules() if path]
        listened = of_part + inside
        for key, one, method in listened:
            key = key if method == "forward" else f"{key}.{method}"
            setattr(one, method, functools.partial(self._called, key, one, getattr(one, method)))
        try:
            yield
        finally:
            for _, one, method in listened:
                vars(one).pop(method, None)  # a module of two networks has one that listens for both

    def _called(self, key: str, module: torch.nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._running:
            return own(*args, **kwargs)
        given = {k: x for k, x in _by_name(own, args, kwargs).items() if not isinstance(x, torch.Generator)}
        given = _copied(given)
        self.calls.setdefault(key, Call(module, own, given))
        self._running.append(key)
        try:
            output = own(*args, **kwargs)
        finally:
            self._running.pop()
        if len(self.steps) < 2:
            self._answers.append(Answer(key, given, _copied(output)))
        return output

    @contextlib.contextmanager
    def stepping(self, scheduler: Any) -> Iterator[None]:
        own = scheduler.step

        def step(*args: Any, **kwargs: Any) -> Any:
            given = _by_name(own, args, kwargs)
            arguments = [_copied(given.get(name)) for name in ("model_output", "timestep", "sample")]
            y = own(*args, **kwargs)
            latent = next(iter(y.values() if isinstance(y, Mapping) else y))
            step = Step(self._answers, arguments[0], float(arguments[1]), arguments[2], _copied(latent))
            self.steps, self._answers = [*self.steps[:2], step], []
            return y

        scheduler.step = step
        try:
            yield
        finally:
            del scheduler.step


def _copied(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.clone, tree)


def _by_name(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function)
    bound = signature.bind(*args, **kwargs).arguments
    others = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
    return {**{name: x for name, x in bound.items() if name != others}, **bound.get(others, {})}
