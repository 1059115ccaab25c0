"""Samplers against diffusers' schedulers stepping, in float64, on the same sigmas and the same noise."""

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    HeunDiscreteScheduler,
    LCMScheduler,
    LMSDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from diffusers.pipelines.ltx.pipeline_ltx_condition import linear_quadratic_schedule
from diffusers.schedulers import scheduling_lcm
from float64_peers import float64_throughout

from refsd.samplers import SAMPLERS
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox, independent
from refsd.samplers.parameterization import EPS, X0, V, denoiser
from refsd.samplers.schedules import SCHEDULES, flow

pytestmark = [
    pytest.mark.peer,
    # diffusers' own
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
PREDICTIONS = {"epsilon": EPS, "v_prediction": V, "sample": X0}
SHAPE = (2, 4, 6, 5)


def network(x, t):
    """A stand-in for a UNet that NumPy and torch both can: bounded, uneven, aware of t."""
    module = torch if isinstance(x, torch.Tensor) else np
    return 0.9 * module.tanh(x + 0.3) + 0.1 * x * (1 + float(t) / 999)


def stepped(scheduler, n: int, x: np.ndarray, **options):
    """Where diffusers ends: x of sigma_0 in its own scale, its timesteps, our noise."""
    scheduler.set_timesteps(n, **options)
    scheduler.sigmas = scheduler.sigmas.double()  # float32 by themselves, and so are their differences
    y = torch.from_numpy(x).double()
    rng = Philox(7)
    draw = lambda shape, **_: torch.from_numpy(rng.randn(tuple(shape))).double()
    module = __import__(type(scheduler).__module__, fromlist=["randn_tensor"])
    before, module.randn_tensor = getattr(module, "randn_tensor", None), draw
    try:
        for t in scheduler.timesteps:
            scaled = scheduler.scale_model_input(y, t) if hasattr(scheduler, "scale_model_input") else y
            y = scheduler.step(network(scaled, t), t, y, return_dict=False)[0]
    finally:
        module.randn_tensor = before
    return y.numpy()


def close(mine, theirs, bound=1e-10):
    assert np.linalg.norm(mine - theirs) <= bound * np.linalg.norm(theirs)


# Latents are data + sigma noise, as refsd's.
EXPLODING = {
    "euler": EulerDiscreteScheduler,
    "euler_a": EulerAncestralDiscreteScheduler,
    "lms": LMSDiscreteScheduler,
    "heun": HeunDiscreteScheduler,
}


# diffusers' euler_a has no x0, and its lms takes x0 for the slope.
ASKED = [(name, p) for name in EXPLODING for p in PREDICTIONS if (p != "sample" or name in ("euler", "heun"))]


@pytest.mark.parametrize("spacing", ["linspace", "leading", "trailing"])
@pytest.mark.parametrize(("name", "prediction"), ASKED)
def test_exploding_variance(name, prediction, spacing):
    with float64_throughout():
        offset = {"steps_offset": 1} if spacing == "leading" else {}
        scheduler = EXPLODING[name](**SD, timestep_spacing=spacing, prediction_type=prediction, **offset)
        sigmas = SCHEDULES[spacing](20, SD_LEVELS)
        x = Philox(42).randn(SHAPE).astype(np.float64) * sigmas[0]
        theirs = stepped(scheduler, 20, x)
        used = scheduler.sigmas.unique().flip(0).numpy()
        np.testing.assert_allclose(used, sigmas, rtol=2e-5, atol=1e-12)  # alphas_cumprod in float32
        times = iter(scheduler.timesteps.tolist())
        model = denoiser(lambda x, t: network(x, next(times)), SD_LEVELS, PREDICTIONS[prediction])
        mine = SAMPLERS[name](model, x, used, independent(Philox(7), SHAPE))
    close(mine, theirs)


MULTISTEP = {
    "dpm++2m": {"algorithm_type": "dpmsolver++", "solver_type": "midpoint"},
    "dpm++2m_sde": {"algorithm_type": "sde-dpmsolver++", "solver_type": "midpoint"},
    "dpm++2m_sde_heun": {"algorithm_type": "sde-dpmsolver++", "solver_type": "heun"},
}


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("name", MULTISTEP)
def test_multistep(name, prediction):
    """diffusers keeps latents of unit variance: x / sqrt(sigma^2 + 1). It ends at the lowest level, not at 0."""
    with float64_throughout():
        scheduler = DPMSolverMultistepScheduler(
            **SD,
            prediction_type=prediction,
            timestep_spacing="trailing",
            lower_order_final=False,
            final_sigmas_type="sigma_min",
            **MULTISTEP[name],
        )
        scheduler.set_timesteps(20)
        used = scheduler.sigmas.double().numpy()
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        theirs = stepped(scheduler, 20, x / np.sqrt(used[0] ** 2 + 1))
        times = scheduler.timesteps.tolist()
        sigma_of = dict(zip(used.tolist(), times, strict=False))
        model = denoiser(lambda x, t: network(x, t), _Told(sigma_of), PREDICTIONS[prediction])
        mine = SAMPLERS[name](model, x, used, independent(Philox(7), SHAPE))
    close(mine / np.sqrt(used[-1] ** 2 + 1), theirs)


class _Told:
    """Levels of a schedule that come with their timesteps."""

    def __init__(self, times):
        self.times = times

    def to_t(self, sigma):
        return self.times[sigma]


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_flow_euler(shift):
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        x = Philox(42).randn(SHAPE).astype(np.float64)
        sigmas = flow.flow_uniform(12)
        theirs = stepped(scheduler, 12, x, sigmas=sigmas[:-1])
        np.testing.assert_allclose(scheduler.sigmas.numpy(), flow.flow_uniform(12, shift), rtol=2e-7)
        used = scheduler.sigmas.numpy()
        mine = SAMPLERS["euler"](lambda x, sigma: x - sigma * network(x, sigma * 1000), x, used)
    close(mine, theirs)


def test_flow_shifts():
    for tokens in (256, 1000, 4096, 5000):
        assert abs(flow.flux_mu(tokens) - calculate_shift(tokens)) < 1e-12
        for n in (4, 28, 50):
            assert abs(flow.flux2_mu(tokens, n) - compute_empirical_mu(tokens, n)) < 1e-12
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    scheduler.set_timesteps(9, sigmas=flow.flow_uniform(9)[:-1], mu=flow.flux_mu(1000))
    np.testing.assert_allclose(scheduler.sigmas.numpy(), flow.flux(9, 1000), rtol=2e-7)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_linear_quadratic(n):
    theirs = [*linear_quadratic_schedule(n), 0.0]
    np.testing.assert_allclose(
        SCHEDULES["linear_quadratic"](n, SD_LEVELS) / SD_LEVELS.sigmas[-1], theirs, atol=1e-12
    )


@pytest.mark.parametrize("n", [2, 4, 8])
def test_lcm(n, monkeypatch):
    """diffusers keeps latents of unit variance, and ends at denoised."""
    with float64_throughout():
        scheduler = LCMScheduler(**SD, timestep_scaling=1e9)
        scheduler.set_timesteps(n)
        times = scheduler.timesteps.tolist()
        abar = scheduler.alphas_cumprod.double().numpy()[times]
        used = np.append(np.sqrt((1 - abar) / abar), 0.0)
        np.testing.assert_allclose(used, SD_LEVELS.to_sigma(np.array([*times, 0]))[: n + 1] * (used > 0), rtol=2e-5)
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        y, rng = torch.from_numpy(x / np.sqrt(used[0] ** 2 + 1)), Philox(7)
        draw = lambda shape, **_: torch.from_numpy(rng.randn(tuple(shape))).double()
        monkeypatch.setattr(scheduling_lcm, "randn_tensor", draw)
        for t in scheduler.timesteps:
            y, denoised = scheduler.step(network(y, t), t, y, return_dict=False)
        told = _Told(dict(zip(used.tolist(), times, strict=False)))
        mine = SAMPLERS["lcm"](denoiser(network, told), x, used, independent(Philox(7), SHAPE))
    # c_skip and c_out of the boundary condition are 0 and 1 at that scaling.
    close(mine, denoised.numpy(), 1e-9)


UNIT = {  # name -> scheduler, its options, ours
    "deis-2": (DEISMultistepScheduler, {"solver_order": 2, "lower_order_final": False}, ("deis", {"order": 2})),
    "deis-3": (DEISMultistepScheduler, {"solver_order": 3, "lower_order_final": False}, ("deis", {"order": 3})),
    **{
        f"uni_pc-{kind}-{order}": (
            UniPCMultistepScheduler,
            {"solver_order": order, "solver_type": kind},
            ("uni_pc" if kind == "bh1" else "uni_pc_bh2", {"order": order}),
        )
        for kind in ("bh1", "bh2")
        for order in (1, 2, 3)
    },
}


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("n", [2, 5, 20])
@pytest.mark.parametrize("name", UNIT)
def test_unit_variance(name, n, prediction):
    kind, options, (sampler, ours) = UNIT[name]
    with float64_throughout():
        # Only bh2 can step to 0 in diffusers: the others take ln 0.
        to_zero = "bh2" in name
        ends = {"timestep_spacing": "linspace"} if to_zero else {"timestep_spacing": "trailing"}
        if kind is UniPCMultistepScheduler and not to_zero:
            ends["final_sigmas_type"] = "sigma_min"
        scheduler = kind(**SD, prediction_type=prediction, **ends, **options)
        scheduler.set_timesteps(n)
        used = scheduler.sigmas.double().numpy()
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        theirs = stepped(scheduler, n, x / np.sqrt(used[0] ** 2 + 1))
        told = _Told(dict(zip(used.tolist(), scheduler.timesteps.tolist(), strict=False)))
        mine = SAMPLERS[sampler](denoiser(network, told, PREDICTIONS[prediction]), x, used, **ours)
    close(mine / np.sqrt(used[-1] ** 2 + 1), theirs)


@pytest.mark.parametrize("eta", [0.0, 0.6, 1.0])
def test_ddim_is_euler_ancestral(eta, monkeypatch):
    """Song et al.'s sigma_t is k-diffusion's sigma_up, with latents of another scale; eta 1 is DDPM's posterior."""
    with float64_throughout():
        scheduler = DDIMScheduler(**SD, clip_sample=False, set_alpha_to_one=True, timestep_spacing="trailing")
        scheduler.set_timesteps(10)
        times = scheduler.timesteps.tolist()
        abar = scheduler.alphas_cumprod.double().numpy()
        used = np.append(np.sqrt((1 - abar[times]) / abar[times]), 0.0)
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        y, draw = torch.from_numpy(x / np.sqrt(used[0] ** 2 + 1)), independent(Philox(7), SHAPE)
        for i, t in enumerate(scheduler.timesteps):
            fresh = torch.from_numpy(draw(0.0, 0.0)).double() if eta and i < 9 else None
            y = scheduler.step(network(y, t), t, y, eta=eta if i < 9 else 0.0, variance_noise=fresh).prev_sample
        told = _Told(dict(zip(used.tolist(), times, strict=False)))
        mine = SAMPLERS["euler_a"](denoiser(network, told), x, used, independent(Philox(7), SHAPE), eta=eta)
    close(mine, y.numpy(), 1e-9)


def test_plms():
    with float64_throughout():
        scheduler = PNDMScheduler(**SD, skip_prk_steps=True, set_alpha_to_one=True)
        scheduler.set_timesteps(10)
        times = np.unique(scheduler.timesteps.numpy())[::-1]
        abar = scheduler.alphas_cumprod.double().numpy()[times]
        used = np.append(np.sqrt((1 - abar) / abar), 0.0)
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        y = torch.from_numpy(x / np.sqrt(used[0] ** 2 + 1))
        for t in scheduler.timesteps:
            y = scheduler.step(network(y, t), t, y).prev_sample
        told = _Told(dict(zip(used.tolist(), times.tolist(), strict=False)))
        mine = SAMPLERS["plms"](denoiser(network, told), x, used)
    close(mine, y.numpy(), 1e-9)
