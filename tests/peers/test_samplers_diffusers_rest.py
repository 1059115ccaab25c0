"""The rest of diffusers' schedulers stepping, in float64; and that docs/samplers.md speaks of every one of them."""

from pathlib import Path

import diffusers.schedulers
import numpy as np
import pytest
import torch
from diffusers import CosineDPMSolverMultistepScheduler, DPMSolverSinglestepScheduler
from diffusers.schedulers import DPMSolverSDEScheduler, FlowMapEulerDiscreteScheduler, MiniMaxH3Scheduler
from diffusers_equivalents import edm_of
from diffusers_steps import SD, START, step
from float64_peers import float64_throughout
from test_samplers_diffusers_more import SHAPE, Told, close, network, stepped

from refsd.samplers import SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.dpmpp_singlestep import orders
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox
from refsd.samplers.parameterization import EPS, V, denoiser
from refsd.samplers.schedules import flow

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
    # torchsde's tree rounds its ends to six digits
    pytest.mark.filterwarnings("ignore:Should have"),
]

PREDICTIONS = {"epsilon": EPS, "v_prediction": V}
PAGE = Path(__file__).parents[2] / "docs" / "samplers.md"


def start(sigma=1.0):
    return Philox(42).randn(SHAPE).astype(np.float64) * sigma


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("use", [None, "karras", "exponential", "beta"])
@pytest.mark.parametrize("spacing", ["linspace", "leading", "trailing"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])  # it refuses "sample"
def test_dpm_solver_sde(prediction, spacing, use, n):
    """k-diffusion's DPM-Solver++ SDE on the same Brownian motion."""
    options = {"prediction_type": prediction, "timestep_spacing": spacing, "noise_sampler_seed": 5}
    if use:
        options[f"use_{use}_sigmas"] = True
    theirs = step(DPMSolverSDEScheduler, {**SD, **options}, n)
    x, times = START * theirs.sigmas[0], iter(theirs.times)
    model = denoiser(lambda x, t: network(x, next(times)), SD_LEVELS, PREDICTIONS[prediction])
    mine = SAMPLERS["dpm++sde"](model, x, theirs.sigmas, brownian_noise(x, theirs.sigmas, 5))
    close(mine, theirs.end, 1e-12)


def test_orders():
    for steps in range(1, 25):
        for order in (1, 2, 3):
            scheduler = DPMSolverSinglestepScheduler(
                solver_order=order, lower_order_final=True, final_sigmas_type="zero"
            )
            assert orders(steps, order, True) == scheduler.get_order_list(steps)
            scheduler.register_to_config(final_sigmas_type="sigma_min")
            assert orders(steps, order, False, True) == scheduler.get_order_list(steps)
            if steps % order == 0:
                scheduler.register_to_config(lower_order_final=False)
                assert orders(steps, order, False) == scheduler.get_order_list(steps)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("schedule", ["karras", "exponential"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])  # it refuses "sample"
@pytest.mark.parametrize("name", ["dpm++2m_sde", "dpm++2m_sde_heun", "euler_a"])
def test_cosine_multistep(name, prediction, schedule, n):
    """Stable Audio's: the network is told 2 atan(sigma) / pi; its noise is a Brownian motion's."""
    options = {"solver_type": "heun" if name.endswith("heun") else "midpoint", "sigma_schedule": schedule}
    options |= {"prediction_type": prediction, "solver_order": 1 if name == "euler_a" else 2}
    generator = torch.Generator().manual_seed(5)
    theirs = step(CosineDPMSolverMultistepScheduler, options, n, step_with={"generator": generator})
    np.testing.assert_allclose(theirs.times, 2 * np.arctan(theirs.sigmas[:-1]) / np.pi, rtol=1e-12)
    x = START * theirs.sigmas[0]
    model = denoiser(network, Told(theirs.sigmas, theirs.times), edm_of(prediction, 1.0))
    # The motion's ends are those of the configuration.
    mine = SAMPLERS[name](model, x, theirs.sigmas, brownian_noise(x, np.array([500.0, 0.3]), 5))
    close(mine, theirs.end, 1e-12)


def test_flow_map(monkeypatch):
    """A flow-map's mean velocity, asked for neighbouring levels, is stepped along as any velocity."""
    with float64_throughout():
        scheduler = FlowMapEulerDiscreteScheduler()
        scheduler.set_timesteps(20)
        scheduler.sigmas = scheduler.sigmas.double()
        used = scheduler.sigmas.numpy()
        theirs = stepped(scheduler, start(), monkeypatch)
        times = iter(scheduler.timesteps.tolist())
        mine = SAMPLERS["euler"](lambda x, s: x - s * network(x, next(times)), start(), used)
    close(mine, theirs)


def test_minimax(monkeypatch):
    """Its network predicts data - noise, at 1 - sigma."""
    with float64_throughout():
        scheduler = MiniMaxH3Scheduler()
        scheduler.set_timesteps(20)
        scheduler.sigmas, scheduler.timesteps = scheduler.sigmas.double(), scheduler.timesteps.double()
        used = scheduler.sigmas.numpy()
        theirs = stepped(scheduler, start(), monkeypatch)
        times = iter(scheduler.timesteps.tolist())

        def model(x, sigma):
            t = next(times)
            return x + (1 - t) * network(x, t)

        mine = SAMPLERS["euler"](model, start(), used)
        np.testing.assert_allclose(used, flow.flow_uniform(19, 12.0), rtol=1e-6, atol=1e-6)
    close(mine, theirs)


def test_the_page_speaks_of_every_scheduler():
    page = PAGE.read_text()
    names = [name for name in dir(diffusers.schedulers) if name.endswith("Scheduler")]
    assert len(names) >= 40 and [name for name in names if f"`{name}`" not in page] == []
