"""Where diffusers' schedulers ended in float64, on their own sigmas: see tests/fixtures/record_diffusers.py."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from refsd.samplers import FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.distilled import consistent
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox
from refsd.samplers.parameterization import EPS, FLOW, V, denoiser
from refsd.samplers.sa_solver import two_weights

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "diffusers_samplers.json").read_text())["runs"]
SHAPE = (2, 1, 2, 3)
LOWER = {"lower_order_final": True}
SA = {"tau_at_start": True, "weights": two_weights, "predictor": 2, "corrector": 2, **LOWER}
HIGH = {"predictor": 3, "corrector": 4}
# Run -> sampler, its options.
OURS = {
    "ddim linspace": ("ddim_strided", {}),
    "ddim trailing noisy": ("ddim_strided", {"eta": 0.6}),
    "ddim leading": ("ddim_strided", {}),
    "pndm leading": ("pndm", {}),
    "pndm linspace": ("pndm", {}),
    "pndm v": ("pndm", {"in_v": True}),
    "pndm one step": ("pndm", {}),
    "dpm++2m": ("dpm++2m", LOWER),
    "dpm++2m whole": ("dpm++2m", {}),
    "dpm++2m_sde": ("dpm++2m_sde", LOWER),
    "dpm++2m_sde_heun": ("dpm++2m_sde_heun", LOWER),
    "dpm++3m": ("dpm++3m_sde", {"eta": 0.0, **LOWER}),
    "dpm++3m midpoint": ("dpm++3m_sde", {"eta": 0.0, "midpoint": True, **LOWER}),
    "dpm++3m whole": ("dpm++3m_sde", {"eta": 0.0, "midpoint": True}),
    "dpm++2m no length": ("dpm++2m", {}),
    "dpm++2m_sde no length": ("dpm++2m_sde", {}),
    "dpm++2s": ("dpm++2s", LOWER),
    "dpm++2s whole": ("dpm++2s", {}),
    "dpm++3s": ("dpm++3s", LOWER),
    "deis": ("deis", {"order": 3, **LOWER}),
    "deis whole": ("deis", {"order": 3}),
    "uni_pc": ("uni_pc", {"order": 3}),
    "uni_pc whole": ("uni_pc", {"order": 3, "lower_order_final": False}),
    "uni_pc_bh2 whole": ("uni_pc_bh2", {"order": 2, "lower_order_final": False}),
    "sa_solver": ("sa_solver", SA),
    "sa_solver of high orders": ("sa_solver", {**SA, **HIGH}),
    "sa_solver whole": ("sa_solver", {**SA, **HIGH, "lower_order_final": False}),
    "lcm": ("lcm", {}),
    "flow dpm++2m_log_snr": ("dpm++2m_log_snr", {}),
    "flow dpm++2s_log_snr": ("dpm++2s_log_snr", {}),
    "flow dpm++3s_log_snr": ("dpm++3s_log_snr", {}),
    "flow deis_log_snr": ("deis_log_snr", {"order": 3}),
    "flow uni_pc_log_snr": ("uni_pc_log_snr", {"order": 3}),
    "flow uni_pc_bh2_log_snr": ("uni_pc_bh2_log_snr", {"order": 3}),
    "flow sa_solver": ("sa_solver", SA),
}


def network(x, t):
    return 0.9 * np.tanh(x + 0.3) + 0.1 * x * (1 + t / 999)


class Told:
    """Levels of which the network is told the recorded timesteps, call by call."""

    def __init__(self, times):
        self._times = iter(times)

    def to_t(self, sigma):
        return next(self._times)


def apart(name: str, sampler: str | None = None, **changes) -> float:
    """How far refsd ends from the scheduler, with its own equivalent, or with another sampler or other options."""
    run, (ours, options) = RECORD[name], OURS[name]
    sigmas, times = np.array(run["sigmas"]), run["times"]
    flow = name.startswith("flow ")
    solver = ({**SAMPLERS, **FLOW_SAMPLERS} if flow else SAMPLERS)[sampler or ours]
    if "tau_at_start" in options:
        at = dict(zip((sigmas / (1 - sigmas) if flow else sigmas)[:-1].tolist(), times, strict=True))
        solver = partial(solver, tau=lambda sigma: float(200 <= at[sigma] <= 800))
    x = Philox(42).randn(SHAPE).astype(np.float64) * (1 if flow else sigmas[0])
    drawn = [Philox(100 + step).randn(SHAPE).astype(np.float64) for step in range(len(times))]
    model = denoiser(network, Told(times), FLOW if flow else V if name == "pndm v" else EPS)
    if name == "lcm":
        model = consistent(model)
    noise = lambda sigma, sigma_next: drawn[int(np.argmin(np.abs(sigmas[:-1] - sigma)))]
    y = solver(model, x, sigmas, noise, **{**options, **changes})
    y = y if flow or name == "lcm" else y / np.sqrt(sigmas[-1] ** 2 + 1)
    return float(np.linalg.norm(y.ravel() - run["end"]) / np.linalg.norm(run["end"]))


@pytest.mark.parametrize("name", RECORD)
def test_ends(name):
    assert apart(name) <= 1e-12


# Run -> a sampler, or an option, that it does not equal.
OTHERS = {
    "ddim linspace": ("ddim", {}),
    "pndm v": ("pndm", {"in_v": False}),
    "dpm++2m": ("dpm++2m", {"lower_order_final": False}),
    "dpm++2m_sde": ("dpm++2m_sde", {"lower_order_final": False}),
    "dpm++3m": ("dpm++3m_sde", {"lower_order_final": False}),
    "dpm++3m midpoint": ("dpm++3m_sde", {"midpoint": False}),
    "dpm++2s": ("dpm++2s", {"lower_order_final": False}),
    "dpm++3s": ("dpm++3s", {"lower_order_final": False}),
    "deis": ("deis", {"lower_order_final": False}),
    "uni_pc": ("uni_pc", {"lower_order_final": False}),
    "sa_solver": ("sa_solver", {"lower_order_final": False}),
    "flow dpm++2m_log_snr": ("dpm++2m", {}),
    "flow deis_log_snr": ("deis", {}),
    "flow uni_pc_log_snr": ("uni_pc", {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_is_seen(name):
    sampler, changes = OTHERS[name]
    assert apart(name, sampler, **changes) > 1e-3


def test_ddim_over_the_end_of_a_schedule():
    """With the whole schedule's steps it ends where the whole run does; by itself its stride is another."""
    sigmas = np.append(SD_LEVELS.sigmas[[999, 700, 420, 130]], 0.0)
    model = denoiser(network, SD_LEVELS)
    xs = []
    x = Philox(42).randn(SHAPE).astype(np.float64) * sigmas[0]
    end = SAMPLERS["ddim_strided"](model, x, sigmas, callback=lambda i, sigma, x, denoised: xs.append(x))
    part = SAMPLERS["ddim_strided"](model, xs[2], sigmas[2:], steps=4)
    np.testing.assert_array_equal(part, end)
    assert not np.allclose(SAMPLERS["ddim_strided"](model, xs[2], sigmas[2:]), end)
