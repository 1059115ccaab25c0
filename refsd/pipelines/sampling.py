"""Samplers under the names and with the defaults of sd-cli, and what each needs beside the model."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.brownian_sdcpp import bridge_noise, seed_of
from refsd.samplers.distilled import tcd_sdcpp
from refsd.samplers.levels import Levels
from refsd.samplers.noise import RNGS, Noise, independent
from refsd.samplers.step import StepNoise

# sd-cli's name -> refsd's: DDIM's step in sigma is Euler's, and with eta the ancestral one.
ALIASES = {"ddim_trailing": "euler_a"}
# Where sd-cli's sampler of this name is another one.
_SDCPP_SAMPLERS = {"tcd": tcd_sdcpp}
# Where sd-cli's default is not the sampler's own. Source: stable-diffusion.cpp, resolve_eta.
_SDCPP_ETA = {"ddim_trailing": 0.0, "tcd": 0.0, "res_multistep": 0.0, "res_2s": 0.0, "er_sde": 1.0}
# Source: stable-diffusion.cpp, sd_get_default_scheduler.
_SDCPP_SCHEDULE = {"lcm": "lcm", "tcd": "lcm", "ddim_trailing": "simple"}
# They ask for a Brownian motion's increments; dpm++2m_sde does with fresh noise, as stable-diffusion.cpp's.
# Source: k-diffusion sampling.py.
_BROWNIAN = ("dpm++sde", "dpm++2m_sde_heun", "dpm++3m_sde")
# Names that mean nothing where the model is no rectified flow.
FLOWS_ONLY = tuple(name for name in FLOW_SAMPLERS if name not in {**SAMPLERS, **CFG_PP_SAMPLERS})
_STD_DEFAULT = (
    "C++ leaves std::default_random_engine and std::normal_distribution to each standard library, "
    "so that one seed gives another picture elsewhere"
)


class Method(NamedTuple):
    """
    name:   as the user called it
    run:    (model, x, sigmas, noise, callback) -> latents; the model gives (denoised, without the prompt) for CFG++
    cfg_pp: whether it is such a one
    """

    name: str
    run: Callable[..., np.ndarray]
    cfg_pp: bool

    def of_schedule(self, levels: Levels, steps: int | None) -> "Method":
        """For a solver that strides over timesteps, as DDIM and PNDM: with the model's levels and all the steps."""
        takes = inspect.signature(self.run).parameters
        known = {name: value for name, value in {"levels": levels, "steps": steps}.items() if name in takes}
        return self._replace(run=partial(self.run, **known)) if known else self

    def noise(self, rng: Noise, x: np.ndarray, sigmas: np.ndarray, seed: int) -> StepNoise:
        """What its steps draw: the rng's next normals, or for an SDE solver a Brownian motion of the seed."""
        if self.name in _BROWNIAN:
            return brownian_noise(x, sigmas, seed)
        if self.name == "dpm++2m_sde_bt":
            return bridge_noise(x, sigmas, seed_of(rng.randn((2,))))
        return independent(rng, x.shape)


def names() -> list[str]:
    """Of all samplers; those in FLOWS_ONLY are for rectified flows alone."""
    return [*SAMPLERS, *ALIASES, *CFG_PP_SAMPLERS, *FLOWS_ONLY]


def default_schedule(sampler: str, otherwise: str = "discrete") -> str:
    """otherwise: of a sampler that does not ask for one of its own"""
    return _SDCPP_SCHEDULE.get(sampler, otherwise)


def method(name: str, eta: float | None = None, flow: bool | None = False) -> Method:
    """The sampler of this name.

    eta:  None is sd-cli's default, or the sampler's own where sd-cli lacks it
    flow: whether the model is a rectified flow, for which engines mean other solvers by some names; None where
          that is not known yet

    stable-diffusion.cpp's er_sde switches its noise by eta, without scaling it; so does this.
    Raises BadInput for another name, for one of a flow alone where the model is none, an eta out of range, or for
    a sampler without one.
    """
    if name not in names():
        raise BadInput(f"--sampling-method {name}: expected one of {', '.join(names())}")
    if name in FLOWS_ONLY and flow is False:
        raise BadInput(f"--sampling-method {name}: this model is no rectified flow, and {name} is for those alone")
    own = ALIASES.get(name, name)
    of_flows = flow or name in FLOWS_ONLY
    table = {**SAMPLERS, **CFG_PP_SAMPLERS, **(FLOW_SAMPLERS if of_flows else {})}
    sampler = _SDCPP_SAMPLERS.get(name) or table[own]
    takes = inspect.signature(sampler).parameters
    if eta is not None:
        most = 1.0 if name == "tcd" else 100.0
        if not 0 <= eta <= most:
            raise BadInput(f"--eta {eta}: expected 0 to {most:g}")
        if "eta" not in takes and name != "er_sde":
            raise BadInput(f"--eta {eta}: {name} has no eta; leave it out")
    eta = _SDCPP_ETA.get(name) if eta is None else eta
    if eta is not None:
        sampler = partial(sampler, s_noise=float(eta > 0)) if name == "er_sde" else partial(sampler, eta=eta)
    return Method(name, sampler, name in CFG_PP_SAMPLERS)


def check_rng(flag: str, name: str) -> None:
    """Raises BadInput for a generator that refsd does not have."""
    if name not in RNGS:
        reason = f"; {_STD_DEFAULT}" if name == "std_default" else ""
        raise BadInput(f"--{flag} {name}: expected one of {', '.join(RNGS)}{reason}")
