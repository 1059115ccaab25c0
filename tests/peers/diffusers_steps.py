"""diffusers' schedulers stepping in float64 throughout: their tables, which NumPy makes in float32, too."""

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import diffusers
import numpy as np
import torch
from float64_peers import float64_throughout

from refsd.samplers.noise import Philox

diffusers.utils.logging.set_verbosity(logging.CRITICAL)  # it says what it makes of each odd option

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SHAPE = (2, 1, 2, 3)
# The normals of each step; whoever does not draw in a step does not move the others'.
DRAWN = [Philox(100 + step).randn(SHAPE).astype(np.float64) for step in range(32)]
START = Philox(42).randn(SHAPE).astype(np.float64)


class _WideNumpy:
    """NumPy, whose float32 is float64."""

    float32 = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def network(x, t):
    """A stand-in for a UNet that NumPy and torch both can: bounded, uneven, aware of t."""
    module = torch if isinstance(x, torch.Tensor) else np
    return 0.9 * module.tanh(x + 0.3) + 0.1 * x * (1 + float(t) / 999)


class Stepped(NamedTuple):
    """
    scheduler: as it is after its last step
    sigmas:    [n + 1], of the steps that were taken, in its own terms
    times:     what the network was told, call by call
    end:       latents, in its own scale
    """

    scheduler: Any
    sigmas: np.ndarray
    times: list[float]
    end: np.ndarray


def set_to(kind: type, n: int | None, config: dict, **options):
    """A scheduler of that configuration, set to n steps in float64. options: further arguments of set_timesteps"""
    right = kind.set_timesteps
    with float64_throughout(), _widened(importlib.import_module(kind.__module__)):
        # Some set themselves to all steps of the training while they are made: half a second for what is set again.
        with patch.object(kind, "set_timesteps", lambda self, *_: right(self, n, **options)):
            scheduler = kind(**config)
        scheduler.set_timesteps(n, **options)
    return scheduler


def step(kind: type, config: dict, n: int, step_with: dict | None = None) -> Stepped:
    """n steps from the first latents, which are START in the scheduler's own scale.

    step_with: further arguments of step
    """
    module = importlib.import_module(kind.__module__)
    scheduler = set_to(kind, n, config)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)  # else timesteps that come twice are begun at their second
    sigmas = sigmas_of(scheduler)
    x = torch.from_numpy(START * scale_of(scheduler, float(sigmas[0])))
    with float64_throughout(), _widened(module) as drawn:
        for call, t in enumerate(scheduler.timesteps):
            drawn.step = call // scheduler.order
            scaled = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
            x = scheduler.step(network(scaled, t), t, x, return_dict=False, **(step_with or {}))[0]
    return Stepped(scheduler, sigmas, scheduler.timesteps.tolist(), x.numpy())


def sigmas_of(scheduler) -> np.ndarray:
    """The noise levels that it steps through, each once."""
    if hasattr(scheduler, "sigmas"):
        sigmas = scheduler.sigmas.numpy()
        if scheduler.order == 2:  # most of them come twice
            sigmas = np.unique(sigmas)[::-1]
        return sigmas[: len(scheduler.timesteps) + 1]
    alphas = scheduler.alphas_cumprod[scheduler.timesteps.unique().flip(0)].numpy()
    # LCM's end is denoised wherever the schedule ends.
    last = 1.0 if "LCM" in type(scheduler).__name__ else float(getattr(scheduler, "final_alpha_cumprod", 1.0))
    alphas = np.append(alphas, last)
    return np.sqrt((1 - alphas) / alphas)


def is_a_flow(scheduler) -> bool:
    return getattr(scheduler.config, "use_flow_sigmas", False) or not hasattr(scheduler, "init_noise_sigma")


def keeps_unit_variance(scheduler) -> bool:
    """Whether its latents are x / sqrt(sigma^2 + 1)."""
    return not is_a_flow(scheduler) and not hasattr(type(scheduler), "init_noise_sigma")


def scale_of(scheduler, sigma: float) -> float:
    """What standard normals are multiplied by to be its first latents."""
    if is_a_flow(scheduler):
        return 1.0
    return sigma / np.sqrt(sigma**2 + 1) if keeps_unit_variance(scheduler) else sigma


class _Drawn:
    step = 0


@contextlib.contextmanager
def _widened(module) -> Iterator[_Drawn]:
    """Inside, the module's NumPy has no float32, and its noise is DRAWN, by the step."""
    drawn = _Drawn()
    replaced = {"np": _WideNumpy(), "randn_tensor": lambda shape, **_: torch.from_numpy(DRAWN[drawn.step])}
    before = {name: getattr(module, name) for name in replaced if hasattr(module, name)}
    try:
        for name in before:
            setattr(module, name, replaced[name])
        yield drawn
    finally:
        for name, value in before.items():
            setattr(module, name, value)
