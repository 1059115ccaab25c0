"""More of diffusers' schedulers stepping, in float64: SA-Solver, SCM, DPM-2, iPNDM, TCD, EDM and the flows' own."""

import importlib

import numpy as np
import pytest
import torch
from diffusers import (
    EDMEulerScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
    IPNDMScheduler,
    KDPM2AncestralDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LTXEulerAncestralRFScheduler,
    SASolverScheduler,
    SCMScheduler,
    StableDiffusionPipeline,
    TCDScheduler,
)
from float64_peers import float64_throughout

from refsd.samplers import FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.levels import SD_LEVELS, EdmLevels
from refsd.samplers.noise import Philox, independent
from refsd.samplers.parameterization import EPS, V, denoiser, edm
from refsd.samplers.sa_solver import adams_weights, two_weights
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.scm import scm, scm_angles
from refsd.tokenizers.cards import PROMPT_CARDS

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SHAPE = (2, 4, 6, 5)


def network(x, t):
    module = torch if isinstance(x, torch.Tensor) else np
    return 0.9 * module.tanh(x + 0.3) + 0.1 * x * (1 + float(t) / 999)


def stepped(scheduler, x: np.ndarray, monkeypatch, told=None) -> np.ndarray:
    """Where diffusers ends from x in its own scale, with our noise. told: timestep -> what the network is told"""
    rng = Philox(7)
    draw = lambda shape, **_: torch.from_numpy(rng.randn(tuple(shape))).double()
    monkeypatch.setattr(importlib.import_module(type(scheduler).__module__), "randn_tensor", draw, raising=False)
    y = torch.from_numpy(x).double()
    for t in scheduler.timesteps:
        scaled = scheduler.scale_model_input(y, t) if hasattr(scheduler, "scale_model_input") else y
        y = scheduler.step(network(scaled, told(t) if told else t), t, y, return_dict=False)[0]
    return y.numpy()


def close(mine, theirs, bound=1e-10):
    assert np.linalg.norm(mine - theirs) <= bound * np.linalg.norm(theirs)


class Told:
    """Levels of a schedule that come with what the network is told."""

    def __init__(self, sigmas, times):
        self.times = dict(zip(sigmas.tolist(), times, strict=False))

    def to_t(self, sigma):
        return self.times[sigma]


@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("orders", [(1, 1), (2, 2), (3, 4), (3, 2)])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_sa_solver(tau, orders, prediction, monkeypatch):
    """Of order 2 it takes the simpler weights, of others those of the polynomial. It draws where tau is 0 too."""
    with float64_throughout():
        scheduler = SASolverScheduler(
            **SD,
            predictor_order=orders[0],
            corrector_order=orders[1],
            tau_func=lambda t: tau,
            lower_order_final=False,
            prediction_type=prediction,
        )
        scheduler.set_timesteps(12)
        scheduler.sigmas = scheduler.sigmas.double()
        used, times = scheduler.sigmas.numpy(), scheduler.timesteps.tolist()
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        theirs = stepped(scheduler, x / np.sqrt(used[0] ** 2 + 1), monkeypatch)
        model = denoiser(network, Told(used, times), V if prediction == "v_prediction" else EPS)
        told = {"tau": lambda sigma: tau, "predictor": orders[0], "corrector": orders[1], "weights": two_weights}
        mine = SAMPLERS["sa_solver"](model, x, used, independent(Philox(7), SHAPE), **told)
    close(mine / np.sqrt(used[-1] ** 2 + 1), theirs)
    three = np.array([-0.2, 0.1, 0.3, 0.5]), 0, np.array([1, 1, 3]), 3, np.full(3, 2.0)
    np.testing.assert_array_equal(two_weights(*three), adams_weights(*three))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_scm(n, monkeypatch):
    with float64_throughout():
        scheduler = SCMScheduler(sigma_data=0.5)
        scheduler.set_timesteps(n, intermediate_timesteps=1.3 if n == 2 else None)
        scheduler.timesteps = scheduler.timesteps.double()
        angles = scheduler.timesteps.numpy()
        np.testing.assert_allclose(angles, scm_angles(n), rtol=1e-7)
        rng, x = Philox(7), Philox(42).randn(SHAPE).astype(np.float64) * 0.5
        draw = lambda shape, **_: torch.from_numpy(rng.randn(tuple(shape))).double()
        monkeypatch.setattr(importlib.import_module(type(scheduler).__module__), "randn_tensor", draw)
        y = torch.from_numpy(x)
        for t in scheduler.timesteps[:-1]:
            y = scheduler.step(network(y, t), t, y, return_dict=False)[0]
        trig = lambda x, t: np.cos(t) * x - np.sin(t) * network(x, t)
        mine = scm(trig, x, angles, independent(Philox(7), SHAPE))
    close(mine, y.numpy(), 1e-12)


@pytest.mark.parametrize(
    ("name", "kind"), [("dpm2", KDPM2DiscreteScheduler), ("dpm2_a", KDPM2AncestralDiscreteScheduler)]
)
def test_dpm_2(name, kind, monkeypatch):
    """It asks at the midpoint about a timestep that it interpolates by itself."""
    with float64_throughout():
        scheduler = kind(**SD, timestep_spacing="linspace")
        scheduler.set_timesteps(10)
        for table in ("sigmas", "sigmas_interpol", "sigmas_up", "sigmas_down"):
            if hasattr(scheduler, table):
                setattr(scheduler, table, getattr(scheduler, table).double())
        used = SCHEDULES["linspace"](10, SD_LEVELS)
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        sigmas = scheduler.sigmas.unique().flip(0).numpy()
        np.testing.assert_allclose(sigmas, used, rtol=2e-5, atol=1e-12)
        theirs = stepped(scheduler, x, monkeypatch)
        times = iter(scheduler.timesteps.tolist())
        model = denoiser(lambda x, t: network(x, next(times)), SD_LEVELS)
        mine = SAMPLERS[name](model, x, sigmas, independent(Philox(7), SHAPE))
    close(mine, theirs, 1e-6)  # its midpoints and steps down are float32


def test_ipndm():
    """It takes v. Its own schedule: the tangent of an angle, from infinity; seen from its second level on."""
    with float64_throughout():
        scheduler = IPNDMScheduler()
        scheduler.set_timesteps(11)
        alphas, betas = scheduler.alphas.double(), scheduler.betas.double()
        scheduler.alphas, scheduler.betas = alphas[1:], betas[1:]
        scheduler.timesteps = scheduler.timesteps[1:]
        used = (scheduler.betas / scheduler.alphas).numpy()
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        y, times = torch.from_numpy(x / np.sqrt(used[0] ** 2 + 1)), scheduler.timesteps.tolist()
        for t in scheduler.timesteps:
            y = scheduler.step(network(y, t), t, y, return_dict=False)[0]
        mine = SAMPLERS["ipndm"](denoiser(network, Told(used, times), V), x, used)
    close(mine, y.numpy())


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
def test_tcd(eta, monkeypatch):
    with float64_throughout():
        scheduler = TCDScheduler(**SD)
        scheduler.set_timesteps(4)
        times = scheduler.timesteps.tolist()
        abar = scheduler.alphas_cumprod.double()
        scheduler.alphas_cumprod = torch.from_numpy(1 / (SD_LEVELS.sigmas**2 + 1))
        assert np.allclose(abar, scheduler.alphas_cumprod, rtol=1e-5)
        used = np.append(SD_LEVELS.sigmas[times], 0.0)
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        rng = Philox(7)
        draw = lambda shape, **_: torch.from_numpy(rng.randn(tuple(shape))).double()
        monkeypatch.setattr(importlib.import_module(type(scheduler).__module__), "randn_tensor", draw)
        y = torch.from_numpy(x / np.sqrt(used[0] ** 2 + 1))
        for t in scheduler.timesteps:
            y = scheduler.step(network(y, t), t, y, eta=eta, return_dict=False)[0]
        mine = SAMPLERS["tcd"](
            denoiser(network, Told(used, times)), x, used, independent(Philox(7), SHAPE), eta=eta
        )
    close(mine, y.numpy())


@pytest.mark.parametrize("name", ["heun", "lcm"])
def test_flows(name, monkeypatch):
    with float64_throughout():
        scheduler = (FlowMatchHeunDiscreteScheduler if name == "heun" else FlowMatchLCMScheduler)(shift=3.0)
        scheduler.set_timesteps(8)
        scheduler.sigmas = scheduler.sigmas.double()
        used = scheduler.sigmas.unique().flip(0).numpy()
        x = Philox(42).randn(SHAPE).astype(np.float64)
        sampler = FLOW_SAMPLERS.get(name, SAMPLERS[name])
        theirs = stepped(scheduler, x, monkeypatch)
        times = iter(scheduler.timesteps.tolist())
        mine = sampler(lambda x, s: x - s * network(x, next(times)), x, used, independent(Philox(7), SHAPE))
    close(mine, theirs)


@pytest.mark.parametrize("eta", [0.0, 0.6, 1.0])
def test_euler_ancestral_of_a_flow(eta, monkeypatch):
    with float64_throughout():
        scheduler = LTXEulerAncestralRFScheduler(eta=eta)
        scheduler.set_timesteps(sigmas=(SCHEDULES["simple"](6, SD_LEVELS) / 15)[:-1].tolist(), device="cpu")
        scheduler.sigmas = scheduler.sigmas.double()
        used = scheduler.sigmas.numpy()
        x = Philox(42).randn(SHAPE).astype(np.float64)
        theirs = stepped(scheduler, x, monkeypatch)
        times = iter(scheduler.timesteps.tolist())
        model = lambda x, s: x - s * network(x, next(times))
        mine = FLOW_SAMPLERS["euler_a"](model, x, used, independent(Philox(7), SHAPE), eta=eta)
    close(mine, theirs)


@pytest.mark.parametrize("schedule", ["karras", "exponential"])
def test_edm(schedule, monkeypatch):
    """EDM's range is a table's ends; its network is told ln(sigma) / 4 and takes c_in x."""
    with float64_throughout():
        scheduler = EDMEulerScheduler(sigma_schedule=schedule)
        scheduler.set_timesteps(9)
        scheduler.sigmas = scheduler.sigmas.double()
        used, levels = scheduler.sigmas.numpy(), EdmLevels(0.002, 80.0)
        np.testing.assert_allclose(used, SCHEDULES[schedule](9, levels), rtol=1e-6)
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        theirs = stepped(scheduler, x, monkeypatch)
        told = Told(used, scheduler.timesteps.tolist())
        np.testing.assert_allclose(
            [levels.to_t(s) for s in used[:-1]], list(told.times.values()), rtol=1e-5, atol=1e-6
        )
        mine = SAMPLERS["euler"](denoiser(network, told, edm(0.5)), x, used)
    close(mine, theirs)


@pytest.mark.parametrize(("said", "layer"), [(None, 1), (1, 2), (2, 3)])
def test_clip_skip(said, layer):
    """Which of the hidden states the pipeline takes: 0 .. 4, the last layer's being 4."""
    states = tuple(torch.full((1, 77, 3), float(i)) for i in range(5))

    class Encoder:
        dtype, config = torch.float32, type("Config", (), {"use_attention_mask": False})()
        text_model = type("Model", (), {"final_layer_norm": staticmethod(lambda x: x)})()

        def __call__(self, ids, attention_mask=None, output_hidden_states=False):
            return (states[-1], None, states) if output_hidden_states else (states[-1],)

    class Tokenizer:
        model_max_length = 77

        def __call__(self, *_args, **_options):
            return type("Ids", (), {"input_ids": torch.zeros((1, 77), dtype=torch.long), "attention_mask": None})()

    pipeline = StableDiffusionPipeline.__new__(StableDiffusionPipeline)
    object.__setattr__(pipeline, "text_encoder", Encoder())
    object.__setattr__(pipeline, "tokenizer", Tokenizer())
    object.__setattr__(pipeline, "unet", None)
    object.__setattr__(pipeline, "maybe_convert_prompt", lambda prompt, _: prompt)
    taken, _ = pipeline.encode_prompt("a cat", "cpu", 1, False, clip_skip=said)
    assert taken.unique().tolist() == [float(5 - layer)]
    assert PROMPT_CARDS["diffusers"].layer(said, "sd1") == layer
