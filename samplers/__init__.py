"""Samplers: sigmas in, latents out. `model(x, sigma) -> denoised`; a file a solver."""

from collections.abc import Callable

import numpy as np

from refsd.samplers.cfg_pp import euler_ancestral_cfg_pp, euler_cfg_pp
from refsd.samplers.deis import deis
from refsd.samplers.distilled import lcm, tcd
from refsd.samplers.dpm_2 import dpm_2, dpm_2_ancestral
from refsd.samplers.dpm_solver import dpm_adaptive, dpm_fast
from refsd.samplers.dpmpp_2m import dpmpp_2m, dpmpp_2m_v2
from refsd.samplers.dpmpp_2s_ancestral import dpmpp_2s_ancestral
from refsd.samplers.dpmpp_sde import dpmpp_2m_sde, dpmpp_2m_sde_heun, dpmpp_3m_sde, dpmpp_sde
from refsd.samplers.er_sde import er_sde
from refsd.samplers.euler import euler
from refsd.samplers.euler_ancestral import euler_ancestral
from refsd.samplers.gradient_estimation import gradient_estimation
from refsd.samplers.heun import heun
from refsd.samplers.ipndm import ipndm, ipndm_v_sdcpp
from refsd.samplers.lms import lms
from refsd.samplers.plms import plms
from refsd.samplers.res import res_2s, res_multistep
from refsd.samplers.uni_pc import uni_pc, uni_pc_bh2

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
    "dpm++2mv2": dpmpp_2m_v2,
    "dpm++2m_sde": dpmpp_2m_sde,
    "dpm++2m_sde_heun": dpmpp_2m_sde_heun,
    "dpm++3m_sde": dpmpp_3m_sde,
    "ipndm": ipndm,
    "ipndm_v": ipndm_v_sdcpp,
    "plms": plms,
    "deis": deis,
    "uni_pc": uni_pc,
    "uni_pc_bh2": uni_pc_bh2,
    "lcm": lcm,
    "tcd": tcd,
    "res_multistep": res_multistep,
    "res_2s": res_2s,
    "er_sde": er_sde,
    "euler_ge": gradient_estimation,
}
# Those whose model(x, sigma) gives denoised with guidance and without the prompt.
CFG_PP_SAMPLERS: dict[str, Callable[..., np.ndarray]] = {
    "euler_cfg_pp": euler_cfg_pp,
    "euler_a_cfg_pp": euler_ancestral_cfg_pp,
}
