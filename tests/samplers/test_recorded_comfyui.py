"""Where ComfyUI's samplers ended after 20 steps in float64: see tests/fixtures/record_comfyui.py."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.cfg_pp_multistep import dpmpp_2s_ancestral_cfg_pp_first
from refsd.samplers.churn import Churn
from refsd.samplers.flow_time import OPENING, exploding, in_flow_time
from refsd.samplers.levels import shift_snr
from refsd.samplers.noise import Philox, independent
from refsd.samplers.sa_solver import tau_between, two_weights
from refsd.samplers.seeds import refined, seeds_2

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "comfyui_samplers.json").read_text())
SHAPE = (2, 1, 2, 3)
KARRAS = np.append(np.linspace(14.6 ** (1 / 7), 0.03 ** (1 / 7), 20) ** 7, 0.0)
FLOW = np.array([3 * t / (1 + 2 * t) for t in (1 - i / 20 for i in range(21))])
CHURN = Churn(6.0, 0.1, 10.0, 1.003, every_step=False)
NOISY = {"eta": 0.6, "s_noise": 1.1}
# What the solvers are told where their defaults are not ComfyUI's, or where the record has other options.
OPTIONS = {
    **dict.fromkeys(("euler_a", "dpm2_a", "dpm++2s_a", "dpm++sde", "dpm++2m_sde", "dpm++2m_sde_heun"), NOISY),
    **dict.fromkeys(("dpm++3m_sde", "res_multistep_a", "seeds_2", "seeds_3", "exp_heun_2_x0_sde"), NOISY),
    **dict.fromkeys(("euler_a_cfg_pp", "dpm++2s_a_cfg_pp", "res_multistep_a_cfg_pp"), NOISY),
    **{name: {"s_noise": 1.1} for name in ("er_sde", "sa_solver", "sa_solver_pece")},
    **{name: {"churn": CHURN} for name in ("euler churned", "heun churned", "dpm2 churned")},
    "heunpp2 churned": {"churn": CHURN._replace(every_step=True)},
    "seeds_2 plain": {"eta": 0.0},
    "seeds_3 plain": {"eta": 0.0},
    "sa_solver simple": {"predictor": 2, "corrector": 2, "weights": two_weights},
}
OTHERS = {
    "dpm++2s_a_cfg_pp": dpmpp_2s_ancestral_cfg_pp_first,
    "seeds_2 r": functools.partial(seeds_2, r=0.7, weights=refined),
}


def denoised(x, sigma):
    return np.tanh(x + 0.3) / (1 + sigma) + 0.05 * x


def guided(x, sigma):
    return denoised(x, sigma), 0.7 * denoised(x, sigma) - 0.1


def agrees(solver, name, sigmas, expected, options):
    x = Philox(42).randn(SHAPE).astype(np.float64) * sigmas[0]
    y = solver(guided if "cfg_pp" in name else denoised, x, sigmas, independent(Philox(7), SHAPE), **options)
    error = np.linalg.norm(y.ravel() - expected) / np.linalg.norm(expected)
    assert error <= 1e-12, error


@pytest.mark.parametrize("name", RECORD["ends"])
def test_ends(name):
    solver = OTHERS.get(name) or {**SAMPLERS, **CFG_PP_SAMPLERS}[name.split()[0]]
    agrees(solver, name, KARRAS, RECORD["ends"][name], OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", RECORD["flow_ends"])
def test_ends_of_a_flow(name):
    options = OPTIONS.get(name, {})
    if name.startswith("sa_solver"):
        options = {**options, "tau": tau_between(exploding(0.8), exploding(0.2))}
    sigmas = np.append(0.99, FLOW[1:]) if name == "dpm++2s_a" else FLOW
    agrees({**SAMPLERS, **FLOW_SAMPLERS}[name], name, sigmas, RECORD["flow_ends"][name], options)


@pytest.mark.parametrize("n", RECORD["below_one"])
def test_the_middle_of_a_step_from_sigma_1(n):
    """ComfyUI asks there at 0.9999, stable-diffusion.cpp not again: 3e-6 apart after two steps."""
    sigmas = FLOW if n == "20" else np.array([1.0, 0.75, 0.0])
    expected = RECORD["below_one"][n]
    agrees(FLOW_SAMPLERS["dpm++2s_a_below_one"], "below one", sigmas, expected, NOISY)
    if n == "2":
        with pytest.raises(AssertionError):
            agrees(FLOW_SAMPLERS["dpm++2s_a"], "below one", sigmas, expected, NOISY)


def test_a_shifted_flow_begins_at_the_shift_of_9999():
    expected = RECORD["shifted"]["dpm++2m_sde"]
    agrees(in_flow_time(SAMPLERS["dpm++2m_sde"], shift_snr(OPENING, 3.0)), "shifted", FLOW, expected, NOISY)
    with pytest.raises(AssertionError):
        agrees(FLOW_SAMPLERS["dpm++2m_sde"], "shifted", FLOW, expected, NOISY)
