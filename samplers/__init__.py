"""Samplers: they take sigmas and a `model(x, sigma) -> denoised`, and return latents. One file for each solver."""

from collections.abc import Callable
from functools import partial

import numpy as np

from refsd.samplers.ancestral import flow_ancestral_step, flow_ancestral_step_above_0
from refsd.samplers.cfg_pp import euler_ancestral_cfg_pp, euler_cfg_pp
from refsd.samplers.cfg_pp_flow import (
    dpmpp_2s_ancestral_cfg_pp_flow,
    euler_ancestral_cfg_pp_flow,
    euler_cfg_pp_flow,
)
from refsd.samplers.cfg_pp_multistep import (
    dpmpp_2m_cfg_pp,
    dpmpp_2s_ancestral_cfg_pp,
    dpmpp_2s_ancestral_cfg_pp_first,
    gradient_estimation_cfg_pp,
    res_multistep_cfg_pp,
)
from refsd.samplers.ddim_strided import ddim_strided
from refsd.samplers.deis import deis
from refsd.samplers.deis_tab import deis_tab
from refsd.samplers.distilled import lcm, lcm_flow, tcd
from refsd.samplers.dpm_2 import dpm_2, dpm_2_ancestral
from refsd.samplers.dpm_solver import dpm_adaptive, dpm_fast
from refsd.samplers.dpmpp_2m import dpmpp_2m, dpmpp_2m_v2
from refsd.samplers.dpmpp_2s_ancestral import dpmpp_2s_ancestral, dpmpp_2s_ancestral_flow, middle_below_one
from refsd.samplers.dpmpp_sde import dpmpp_2m_sde, dpmpp_3m_sde, dpmpp_sde, heun_weight
from refsd.samplers.dpmpp_singlestep import dpmpp_singlestep
from refsd.samplers.endings import last_denoised, to_a_thousandth
from refsd.samplers.er_sde import er_sde
from refsd.samplers.euler import euler
from refsd.samplers.euler_ancestral import euler_ancestral
from refsd.samplers.flow_time import in_flow_time
from refsd.samplers.gradient_estimation import gradient_estimation
from refsd.samplers.gradient_estimation_ancestral import gradient_estimation_ancestral
from refsd.samplers.heun import heun
from refsd.samplers.heunpp2 import heunpp2
from refsd.samplers.ipndm import ipndm, ipndm_v_sdcpp
from refsd.samplers.ipndm_v import ipndm_v
from refsd.samplers.lms import lms
from refsd.samplers.lms_shifted import lms_shifted
from refsd.samplers.plms import plms
from refsd.samplers.pndm import pndm
from refsd.samplers.res import res_2s, res_multistep
from refsd.samplers.restart import restart
from refsd.samplers.sa_solver import sa_solver
from refsd.samplers.seeds import exp_heun_2_x0, refined, seeds_2, seeds_3
from refsd.samplers.uni_pc import b_2, uni_pc

dpmpp_2m_sde_heun = partial(dpmpp_2m_sde, weight=heun_weight)
dpmpp_3s_singlestep = partial(dpmpp_singlestep, highest=3)
exp_heun_2_x0_sde = partial(seeds_2, r=1.0, weights=refined)
sa_solver_pece = partial(sa_solver, pece=True)
uni_pc_bh2 = partial(uni_pc, B=b_2)

# Every sampler is a function (model, x, sigmas, noise, callback). ddim equals euler, and ddpm equals euler_a.
# dpm++2m_sde_bt is dpm++2m_sde with the noise of brownian_sdcpp.
SAMPLERS: dict[str, Callable[..., np.ndarray]] = {
    "euler": euler,
    "euler_a": euler_ancestral,
    "heun": heun,
    "heunpp2": heunpp2,
    "exp_heun_2_x0": exp_heun_2_x0,
    "exp_heun_2_x0_sde": exp_heun_2_x0_sde,
    "dpm2": dpm_2,
    "dpm2_a": dpm_2_ancestral,
    "lms": lms,
    "lms_to_denoised": last_denoised(lms),
    "lms_shifted": lms_shifted,
    "dpm_fast": dpm_fast,
    "dpm_adaptive": dpm_adaptive,
    "dpm++2s_a": dpmpp_2s_ancestral,
    "dpm++2s": dpmpp_singlestep,
    "dpm++3s": dpmpp_3s_singlestep,
    "dpm++sde": dpmpp_sde,
    "dpm++2m": dpmpp_2m,
    "dpm++2mv2": dpmpp_2m_v2,
    "dpm++2m_sde": dpmpp_2m_sde,
    "dpm++2m_sde_bt": dpmpp_2m_sde,
    "dpm++2m_sde_heun": dpmpp_2m_sde_heun,
    "dpm++3m_sde": dpmpp_3m_sde,
    "ddpm": euler_ancestral,
    "ddim": euler,
    "ddim_strided": ddim_strided,
    "ipndm": ipndm,
    "ipndm_to_denoised": last_denoised(ipndm),
    "ipndm_v": ipndm_v_sdcpp,
    "ipndm_v_published": ipndm_v,
    "plms": plms,
    "pndm": pndm,
    "pndm_v": partial(pndm, in_v=True),
    "deis": deis,
    "deis_tab": deis_tab,
    "uni_pc": uni_pc,
    "uni_pc_bh2": uni_pc_bh2,
    "uni_pc_to_thousandth": to_a_thousandth(uni_pc),
    "uni_pc_bh2_to_thousandth": to_a_thousandth(uni_pc_bh2),
    "lcm": lcm,
    "tcd": tcd,
    "res_multistep": res_multistep,
    "res_multistep_a": partial(res_multistep, eta=1.0),
    "res_2s": res_2s,
    "er_sde": er_sde,
    "seeds_2": seeds_2,
    "seeds_3": seeds_3,
    "sa_solver": sa_solver,
    "sa_solver_pece": sa_solver_pece,
    "restart": restart,
    "euler_ge": gradient_estimation,
    "euler_ge_a": gradient_estimation_ancestral,
}
# CFG++ samplers; their model(x, sigma) returns denoised with guidance, and denoised without the prompt.
CFG_PP_SAMPLERS: dict[str, Callable[..., np.ndarray]] = {
    "euler_cfg_pp": euler_cfg_pp,
    "euler_a_cfg_pp": euler_ancestral_cfg_pp,
    "dpm++2s_a_cfg_pp": dpmpp_2s_ancestral_cfg_pp,
    "dpm++2s_a_cfg_pp_first": dpmpp_2s_ancestral_cfg_pp_first,
    "dpm++2m_cfg_pp": dpmpp_2m_cfg_pp,
    "res_multistep_cfg_pp": res_multistep_cfg_pp,
    "res_multistep_a_cfg_pp": partial(res_multistep_cfg_pp, eta=1.0),
    "euler_ge_cfg_pp": gradient_estimation_cfg_pp,
}
# First sigma of diffusers' UniPC if a flow begins at 1. Source: diffusers UniPCMultistepScheduler.set_timesteps.
UNI_PC_OPENING = 1 - 1e-6
# Solvers that engines use under these names for a rectified flow; names that are not here have the solvers above.
# So dpm++2m works in ln sigma, as in ComfyUI and stable-diffusion.cpp; diffusers' solvers work in log SNR.
FLOW_SAMPLERS: dict[str, Callable[..., np.ndarray]] = {
    "euler": euler,
    "euler_a": partial(euler_ancestral, ancestral=flow_ancestral_step),
    "dpm2_a": partial(dpm_2_ancestral, ancestral=flow_ancestral_step_above_0),
    "dpm++2s_a": dpmpp_2s_ancestral_flow,
    "dpm++2s_a_below_one": partial(dpmpp_2s_ancestral_flow, middle=middle_below_one),
    "res_multistep": partial(res_multistep, ancestral=flow_ancestral_step_above_0),
    "res_2s": partial(res_2s, ancestral=flow_ancestral_step_above_0),
    "euler_ge_a": partial(gradient_estimation_ancestral, ancestral=flow_ancestral_step),
    "lcm": lcm_flow,
    "dpm++sde": in_flow_time(dpmpp_sde),
    "dpm++2m_sde": in_flow_time(dpmpp_2m_sde),
    "dpm++2m_sde_heun": in_flow_time(dpmpp_2m_sde_heun),
    "dpm++3m_sde": in_flow_time(dpmpp_3m_sde),
    "er_sde": in_flow_time(er_sde),
    "seeds_2": in_flow_time(seeds_2),
    "seeds_3": in_flow_time(seeds_3),
    "exp_heun_2_x0": in_flow_time(exp_heun_2_x0),
    "exp_heun_2_x0_sde": in_flow_time(exp_heun_2_x0_sde),
    "sa_solver": in_flow_time(sa_solver),
    "sa_solver_pece": in_flow_time(sa_solver_pece),
    "dpm++2m_log_snr": in_flow_time(dpmpp_2m),
    "dpm++2s_log_snr": in_flow_time(dpmpp_singlestep),
    "dpm++3s_log_snr": in_flow_time(dpmpp_3s_singlestep),
    "deis_log_snr": in_flow_time(deis),
    "uni_pc_log_snr": in_flow_time(uni_pc, UNI_PC_OPENING),
    "uni_pc_bh2_log_snr": in_flow_time(uni_pc_bh2, UNI_PC_OPENING),
    "euler_cfg_pp": euler_cfg_pp_flow,
    "euler_a_cfg_pp": euler_ancestral_cfg_pp_flow,
    "dpm++2s_a_cfg_pp": dpmpp_2s_ancestral_cfg_pp_flow,
}
