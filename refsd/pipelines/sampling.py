"""Samplers with sd-cli's names and defaults, and the further arguments that each needs."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions import DEFAULT
from refsd.conventions.pictures import Convention
from refsd.numerics.errors import BadInput
from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.brownian_sdcpp import bridge_noise, seed_of
from refsd.samplers.distilled import tcd_sdcpp
from refsd.samplers.noise import RNGS, Noise, independent
from refsd.samplers.step import StepNoise

# sd-cli's name -> refsd's. In sigma, DDIM's step is Euler's, with eta > 0 Euler ancestral's.
ALIASES = {"ddim_trailing": "euler_a"}
# Names under which sd-cli has another algorithm than refsd.
_SDCPP_SAMPLERS = {"tcd": tcd_sdcpp}
# sd-cli's default eta where it differs from the sampler's. Source: stable-diffusion.cpp, resolve_eta.
_SDCPP_ETA = {"ddim_trailing": 0.0, "tcd": 0.0, "res_multistep": 0.0, "res_2s": 0.0, "er_sde": 1.0}
# Samplers for rectified flows only.
FLOWS_ONLY = tuple(name for name in FLOW_SAMPLERS if name not in {**SAMPLERS, **CFG_PP_SAMPLERS})
_STD_DEFAULT = (
    "C++ leaves std::default_random_engine and std::normal_distribution to each standard library, "
    "so that one seed gives another picture elsewhere"
)


class Method(NamedTuple):
    """A sampler with its options.

    name:   the user's name of it
    brownian: True if its noise is that of a Brownian motion
    run:    (model, x, sigmas, noise, callback) -> latents
    cfg_pp: True for a CFG++ sampler, whose model returns (denoised, denoised without the prompt)
    """

    name: str
    run: Callable[..., np.ndarray]
    cfg_pp: bool
    brownian: bool = False

    def with_options(self, **options: Any) -> "Method":
        """Return the sampler with those options bound that it takes, as DDIM and PNDM take `levels` and `steps`."""
        takes = inspect.signature(self.run).parameters
        known = {name: value for name, value in options.items() if name in takes}
        return self._replace(run=partial(self.run, **known)) if known else self

    def noise(self, rng: Noise, x: np.ndarray, sigmas: np.ndarray, seed: int) -> StepNoise:
        """Return the noise of its steps: the rng's next normals; for SDE solvers a Brownian motion of the seed."""
        if self.brownian:
            return brownian_noise(x, sigmas, seed)
        if self.name == "dpm++2m_sde_bt":
            return bridge_noise(x, sigmas, seed_of(rng.randn((2,))))
        return independent(rng, x.shape)


def names() -> list[str]:
    """Return the names of all samplers, including FLOWS_ONLY."""
    return [*SAMPLERS, *ALIASES, *CFG_PP_SAMPLERS, *FLOWS_ONLY]


def method(
    name: str, eta: float | None = None, flow: bool | None = False, convention: Convention = DEFAULT
) -> Method:
    """Return the sampler of this name in a convention.

    eta:  None: sd-cli's default, or the sampler's own if sd-cli lacks the sampler
    flow: True if the model is a rectified flow, for which some names mean other solvers; None if not yet known

    As in stable-diffusion.cpp, er_sde's eta switches its noise on or off and does not scale it.
    Raises BadInput for an unknown name, for a sampler that the convention lacks, for a sampler of flows only if the
    model is none, for an eta out of range, or for an eta if the sampler has none.
    """
    if name not in names():
        raise BadInput(f"--sampling-method {name}: expected one of {', '.join(names())}")
    if name in FLOWS_ONLY and flow is False:
        raise BadInput(f"--sampling-method {name}: this model is no rectified flow, and {name} is for those alone")
    if convention.samplers is not None and name not in convention.samplers:
        known = ", ".join(convention.samplers)
        raise BadInput(f"--sampling-method {name}: of {convention.name}'s samplers refsd knows {known}")
    own = ALIASES.get(name, name) if convention.samplers is None else convention.samplers[name]
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
    return Method(name, sampler, name in CFG_PP_SAMPLERS, name in convention.brownian)


def check_rng(flag: str, name: str) -> None:
    """Raise BadInput for a random generator that refsd does not have."""
    if name not in RNGS:
        reason = f"; {_STD_DEFAULT}" if name == "std_default" else ""
        raise BadInput(f"--{flag} {name}: expected one of {', '.join(RNGS)}{reason}")
