"""Samplers: sigmas in, latents out. `model(x, sigma) -> denoised`; a file a solver."""

from collections.abc import Callable

import numpy as np

from refsd.samplers.dpm_2 import dpm_2, dpm_2_ancestral
from refsd.samplers.dpm_solver import dpm_adaptive, dpm_fast
from refsd.samplers.dpmpp_2m import dpmpp_2m
from refsd.samplers.dpmpp_2s_ancestral import dpmpp_2s_ancestral
from refsd.samplers.dpmpp_sde import dpmpp_2m_sde, dpmpp_2m_sde_heun, dpmpp_3m_sde, dpmpp_sde
from refsd.samplers.euler import euler
from refsd.samplers.euler_ancestral import euler_ancestral
from refsd.samplers.heun import heun
from refsd.samplers.lms import lms

# Every sampler is called (model, x, sigmas, noise, callback).
SAMPLERS: dict[str, Callable[..., np.ndarray]] = {
    "euler": euler,
    "euler_a": euler_ancestral,
    "heun": heun,
    "dpm2": dpm_2,
    "dpm2_a": dpm_2_ancestral,
    "lms": lms,
    "dpm_fast": dpm_fast,
    "dpm_adaptive": dpm_adaptive,
    "dpm++2s_a": dpmpp_2s_ancestral,
    "dpm++sde": dpmpp_sde,
    "dpm++2m": dpmpp_2m,
    "dpm++2m_sde": dpmpp_2m_sde,
    "dpm++2m_sde_heun": dpmpp_2m_sde_heun,
    "dpm++3m_sde": dpmpp_3m_sde,
}
