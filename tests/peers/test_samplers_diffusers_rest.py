"""The rest of diffusers' schedulers stepping, in float64; and that docs/samplers.md speaks of every one of them."""

from pathlib import Path

import diffusers.schedulers
import numpy as np
import pytest
import torch
from diffusers import (
    CogVideoXDDIMScheduler,
    CosineDPMSolverMultistepScheduler,
    DDIMParallelScheduler,
    DDPMParallelScheduler,
    DDPMScheduler,
    DPMSolverSinglestepScheduler,
    EDMDPMSolverMultistepScheduler,
)
from diffusers.schedulers import DPMSolverSDEScheduler, FlowMapEulerDiscreteScheduler, MiniMaxH3Scheduler
from float64_peers import float64_throughout
from test_samplers_diffusers_more import SD, SHAPE, Told, close, network, stepped

from refsd.samplers import SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.dpmpp_singlestep import orders
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox, independent
from refsd.samplers.parameterization import EPS, X0, Prediction, V, denoiser, edm
from refsd.samplers.schedules import SCHEDULES, flow

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
    # torchsde's tree rounds its ends to six digits
    pytest.mark.filterwarnings("ignore:Should have"),
]

PREDICTIONS = {"epsilon": EPS, "v_prediction": V, "sample": X0}
PAGE = Path(__file__).parents[2] / "docs" / "samplers.md"


def start(sigma=1.0):
    return Philox(42).randn(SHAPE).astype(np.float64) * sigma


@pytest.mark.parametrize("schedule", ["linspace", "karras"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])  # it refuses "sample"
def test_dpm_solver_sde(prediction, schedule):
    """k-diffusion's DPM-Solver++ SDE on the same Brownian motion."""
    with float64_throughout():
        scheduler = DPMSolverSDEScheduler(
            **SD,
            prediction_type=prediction,
            timestep_spacing="linspace",
            use_karras_sigmas=schedule == "karras",
            noise_sampler_seed=5,
        )
        scheduler.set_timesteps(20)
        scheduler.sigmas = scheduler.sigmas.double()
        used = scheduler.sigmas.unique().flip(0).numpy()
        np.testing.assert_allclose(used, SCHEDULES[schedule](20, SD_LEVELS), rtol=2e-5, atol=1e-12)
        y, x = torch.from_numpy(start(used[0])), start(used[0])
        for t in scheduler.timesteps:
            y = scheduler.step(network(scheduler.scale_model_input(y, t), t), t, y, return_dict=False)[0]
        times = iter(scheduler.timesteps.tolist())
        model = denoiser(lambda x, t: network(x, next(times)), SD_LEVELS, PREDICTIONS[prediction])
        mine = SAMPLERS["dpm++sde"](model, x, used, brownian_noise(x, used, 5))
    close(mine, y.numpy())


@pytest.mark.parametrize("final", ["zero", "sigma_min"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize(("name", "order", "steps"), [("dpm++2s", 2, 20), ("dpm++2s", 2, 7), ("dpm++3s", 3, 20)])
def test_singlestep(name, order, steps, prediction, final, monkeypatch):
    """diffusers keeps latents of unit variance: x / sqrt(sigma^2 + 1)."""
    with float64_throughout():
        scheduler = DPMSolverSinglestepScheduler(
            **SD,
            solver_order=order,
            prediction_type=prediction,
            final_sigmas_type=final,
            lower_order_final=final == "zero" or steps % order > 0,
        )
        scheduler.set_timesteps(steps)
        scheduler.sigmas = scheduler.sigmas.double()
        used = scheduler.sigmas.numpy()
        assert scheduler.order_list == orders(steps, order, final == "zero")
        theirs = stepped(scheduler, start(used[0]) / np.sqrt(used[0] ** 2 + 1), monkeypatch)
        told = Told(used, scheduler.timesteps.tolist())
        mine = SAMPLERS[name](denoiser(network, told, PREDICTIONS[prediction]), start(used[0]), used)
    close(mine / np.sqrt(used[-1] ** 2 + 1), theirs)


def test_orders():
    for steps in range(2, 25):
        for order in (1, 2, 3):
            scheduler = DPMSolverSinglestepScheduler(
                solver_order=order, lower_order_final=True, final_sigmas_type="zero"
            )
            assert orders(steps, order, True) == scheduler.get_order_list(steps)


EDM = {
    "dpm++2m": {"algorithm_type": "dpmsolver++", "solver_type": "midpoint"},
    "dpm++2m_sde": {"algorithm_type": "sde-dpmsolver++", "solver_type": "midpoint"},
    "dpm++2m_sde_heun": {"algorithm_type": "sde-dpmsolver++", "solver_type": "heun"},
}


def edm_of(prediction: str, sigma_data: float) -> Prediction:
    """Karras et al.'s preconditioning; by "v_prediction" diffusers means it with the other sign."""
    scalings = edm(sigma_data).scalings

    def turned(sigma):
        c_skip, c_out, c_in = scalings(sigma)
        return c_skip, -c_out if prediction == "v_prediction" else c_out, c_in

    return Prediction(prediction, turned)


@pytest.mark.parametrize("schedule", ["karras", "exponential"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])  # it refuses "sample"
@pytest.mark.parametrize("name", EDM)
def test_edm_multistep(name, prediction, schedule, monkeypatch):
    with float64_throughout():
        scheduler = EDMDPMSolverMultistepScheduler(prediction_type=prediction, sigma_schedule=schedule, **EDM[name])
        scheduler.set_timesteps(20)
        scheduler.sigmas = scheduler.sigmas.double()
        used = scheduler.sigmas.numpy()
        theirs = stepped(scheduler, start(used[0]), monkeypatch)
        model = denoiser(network, Told(used, scheduler.timesteps.tolist()), edm_of(prediction, 0.5))
        mine = SAMPLERS[name](model, start(used[0]), used, independent(Philox(7), SHAPE))
    close(mine, theirs)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])  # it refuses "sample"
@pytest.mark.parametrize("name", ["dpm++2m_sde", "dpm++2m_sde_heun"])
def test_cosine_multistep(name, prediction):
    """Stable Audio's: the network is told 2 atan(sigma) / pi; its noise is a Brownian motion's."""
    with float64_throughout():
        kind = EDM[name]["solver_type"]
        scheduler = CosineDPMSolverMultistepScheduler(prediction_type=prediction, solver_type=kind)
        scheduler.set_timesteps(20)
        scheduler.sigmas = scheduler.sigmas.double()
        # The motion's ends are those of the schedule.
        scheduler.sigmas[0], scheduler.sigmas[-2] = 500.0, 0.3
        used = scheduler.sigmas.numpy()
        times = (2 * np.arctan(used[:-1]) / np.pi).tolist()
        np.testing.assert_allclose(scheduler.timesteps.numpy(), times, rtol=1e-6)
        y, x, generator = torch.from_numpy(start(used[0])), start(used[0]), torch.Generator().manual_seed(5)
        for t in scheduler.timesteps:
            y = scheduler.step(
                network(scheduler.scale_model_input(y, t), t), t, y, generator=generator, return_dict=False
            )[0]
        model = denoiser(network, Told(used, scheduler.timesteps.tolist()), edm_of(prediction, 1.0))
        mine = SAMPLERS[name](model, x, used, brownian_noise(x, used, 5))
    close(mine, y.numpy())


@pytest.mark.parametrize("kind", [DDPMScheduler, DDPMParallelScheduler])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_ddpm(kind, prediction, monkeypatch):
    """Ho et al.'s posterior is the ancestral step with eta 1. Latents are of unit variance."""
    with float64_throughout():
        scheduler = kind(**SD, prediction_type=prediction, clip_sample=False, timestep_spacing="trailing")
        scheduler.set_timesteps(20)
        times = scheduler.timesteps.tolist()
        scheduler.alphas_cumprod = torch.from_numpy(1 / (SD_LEVELS.sigmas**2 + 1))
        used = np.append(SD_LEVELS.sigmas[times], 0.0)
        theirs = stepped(scheduler, start(used[0]) / np.sqrt(used[0] ** 2 + 1), monkeypatch)
        model = denoiser(network, Told(used, times), PREDICTIONS[prediction])
        mine = SAMPLERS["ddpm"](model, start(used[0]), used, independent(Philox(7), SHAPE))
    close(mine, theirs, 1e-9)  # its last step, to 0, adds 1e-10 of noise


@pytest.mark.parametrize("kind", [DDIMParallelScheduler, CogVideoXDDIMScheduler])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_ddim_elsewhere(kind, prediction, monkeypatch):
    with float64_throughout():
        options = {"clip_sample": False, "timestep_spacing": "trailing", "prediction_type": prediction}
        scheduler = kind(**SD, **options, set_alpha_to_one=True)
        scheduler.set_timesteps(20)
        times = scheduler.timesteps.tolist()
        abar = scheduler.alphas_cumprod.double().numpy()[times]
        used = np.append(np.sqrt((1 - abar) / abar), 0.0)
        theirs = stepped(scheduler, start(used[0]) / np.sqrt(used[0] ** 2 + 1), monkeypatch)
        mine = SAMPLERS["ddim"](denoiser(network, Told(used, times), PREDICTIONS[prediction]), start(used[0]), used)
    close(mine, theirs, 1e-9)  # the roots of its alphas


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
