"""Schedules, parameterization and samplers against k-diffusion, all of it in float64."""

from itertools import pairwise

import k_diffusion_alone
import numpy as np
import pytest
import torch
from float64_peers import float64_throughout

from refsd.samplers import SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.churn import Churn
from refsd.samplers.dpm_solver import dpm_adaptive, dpm_fast
from refsd.samplers.levels import DiscreteLevels, NearestLevels, scaled_linear_alphas_cumprod, training_sigmas
from refsd.samplers.noise import Philox, independent
from refsd.samplers.parameterization import V, denoiser
from refsd.samplers.schedules import SCHEDULES, discrete, karras

external = k_diffusion_alone.load("external")
sampling = k_diffusion_alone.load("sampling")

pytestmark = pytest.mark.peer

ALPHAS = scaled_linear_alphas_cumprod()
LEVELS = DiscreteLevels(training_sigmas(ALPHAS))
S = sampling
# Name -> k-diffusion's function, and what it is told besides.
THEIRS = {
    "euler": (S.sample_euler, {}),
    "euler_a": (S.sample_euler_ancestral, {}),
    "heun": (S.sample_heun, {}),
    "dpm2": (S.sample_dpm_2, {}),
    "dpm2_a": (S.sample_dpm_2_ancestral, {}),
    "lms": (S.sample_lms, {}),
    "dpm++2s_a": (S.sample_dpmpp_2s_ancestral, {}),
    "dpm++sde": (S.sample_dpmpp_sde, {}),
    "dpm++2m": (S.sample_dpmpp_2m, {}),
    "dpm++2m_sde": (S.sample_dpmpp_2m_sde, {}),
    "dpm++2m_sde_heun": (S.sample_dpmpp_2m_sde, {"solver_type": "heun"}),
    "dpm++3m_sde": (S.sample_dpmpp_3m_sde, {}),
}
STOCHASTIC = {"euler_a", "dpm2_a", "dpm++2s_a", "dpm++sde", "dpm++2m_sde", "dpm++2m_sde_heun", "dpm++3m_sde"}


def network(x, t):
    """A stand-in for a UNet that NumPy and torch both can: bounded, uneven, aware of t."""
    module = torch if isinstance(x, torch.Tensor) else np
    t = t if isinstance(t, float) else t.reshape(-1, 1, 1, 1)
    return 0.9 * module.tanh(x + 0.3) + 0.1 * x * (1 + t / 999)


@pytest.fixture
def model():
    with float64_throughout():  # t_to_sigma casts t to float32
        yield external.DiscreteEpsDDPMDenoiser(network, torch.from_numpy(ALPHAS), quantize=False)


def test_levels_and_both_maps(model):
    np.testing.assert_allclose(LEVELS.sigmas, model.sigmas.numpy(), rtol=1e-12)
    t = np.array([0.0, 0.5, 1.0, 417.3, 998.9, 999.0])
    sigmas = LEVELS.to_sigma(t)
    np.testing.assert_allclose(sigmas, model.t_to_sigma(torch.from_numpy(t)).numpy(), rtol=1e-12)
    theirs = model.sigma_to_t(torch.from_numpy(sigmas)).numpy()
    np.testing.assert_allclose([LEVELS.to_t(s) for s in sigmas], theirs, rtol=1e-12, atol=1e-10)
    near = model.sigma_to_t(torch.from_numpy(sigmas), quantize=True).numpy()
    np.testing.assert_array_equal([NearestLevels(LEVELS.sigmas).to_t(s) for s in sigmas], near)


@pytest.mark.parametrize("n", [1, 2, 20, 33, 1000])
def test_schedules(model, n):
    np.testing.assert_allclose(discrete(n, LEVELS), model.get_sigmas(n).numpy(), rtol=1e-12)
    ends = float(LEVELS.sigmas[0]), float(LEVELS.sigmas[-1])
    for name in ("karras", "exponential", "polyexponential"):
        theirs = getattr(sampling, f"get_sigmas_{name}")(n, *ends).numpy()
        np.testing.assert_allclose(SCHEDULES[name](n, LEVELS), theirs, rtol=1e-12)
    np.testing.assert_allclose(SCHEDULES["vp"](n, LEVELS), sampling.get_sigmas_vp(n).numpy(), rtol=1e-12)


def test_v_prediction():
    """At the levels and between them, float64."""
    with float64_throughout():
        theirs = external.DiscreteVDDPMDenoiser(network, torch.from_numpy(ALPHAS), quantize=False)
        ours = denoiser(network, LEVELS, V)
        for sigma in (0.03, 0.7, 14.0):
            x = start(sigma)
            z = theirs(torch.from_numpy(x), torch.full((len(x),), sigma)).numpy()
            np.testing.assert_allclose(ours(x, sigma), z, rtol=1e-12, atol=1e-13)


class Trajectory:
    """What a sampler shows its callback at each step: the latents it started from, and the answer."""

    def __init__(self):
        self.steps: list[tuple[np.ndarray, np.ndarray]] = []

    def ours(self, i, sigma, x, denoised):
        self.steps.append((x, denoised))

    def theirs(self, step):
        self.steps.append((step["x"].clone().numpy(), step["denoised"].numpy()))


def tensor_noise(noise):
    return lambda sigma, sigma_next: torch.from_numpy(noise(float(sigma), float(sigma_next))).double()


def agree(mine: Trajectory, theirs: Trajectory, y, z, bound=1e-10):
    for (x_mine, d_mine), (x_theirs, d_theirs) in zip(mine.steps, theirs.steps, strict=True):
        assert np.linalg.norm(x_mine - x_theirs) <= bound * np.linalg.norm(x_theirs)
        assert np.linalg.norm(d_mine - d_theirs) <= bound * np.linalg.norm(d_theirs)
    assert np.linalg.norm(y - z) <= bound * np.linalg.norm(z)


def start(sigma: float) -> np.ndarray:
    return Philox(42).randn((2, 4, 6, 5)).astype(np.float64) * sigma


NOISY = {"eta": 0.6, "s_noise": 1.1}


@pytest.mark.parametrize("schedule", [discrete, karras])
@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in THEIRS), *((name, NOISY) for name in sorted(STOCHASTIC))]
)
def test_trajectories(model, name, schedule, options):
    """20 steps, each seen from inside, on a batch of two with H != W."""
    sigmas = schedule(20, LEVELS)
    x = start(sigmas[0])
    mine, theirs = Trajectory(), Trajectory()
    y = SAMPLERS[name](denoiser(network, LEVELS), x, sigmas, independent(Philox(7), x.shape), mine.ours, **options)
    function, told = THEIRS[name]
    fresh = {"noise_sampler": tensor_noise(independent(Philox(7), x.shape))} if name in STOCHASTIC else {}
    z = function(
        model,
        torch.from_numpy(x),
        torch.from_numpy(sigmas),
        callback=theirs.theirs,
        disable=True,
        **fresh,
        **told,
        **options,
    ).numpy()
    agree(mine, theirs, y, z)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("name", THEIRS)
def test_few_steps(model, name, steps):
    sigmas = karras(steps, LEVELS)
    x = start(sigmas[0])
    y = SAMPLERS[name](denoiser(network, LEVELS), x, sigmas, independent(Philox(7), x.shape))
    function, told = THEIRS[name]
    fresh = {"noise_sampler": tensor_noise(independent(Philox(7), x.shape))} if name in STOCHASTIC else {}
    ask = lambda: function(model, torch.from_numpy(x), torch.from_numpy(sigmas), disable=True, **fresh, **told)
    if steps == 1 and name in ("dpm++2m_sde", "dpm++2m_sde_heun", "dpm++3m_sde"):
        with pytest.raises(UnboundLocalError):  # k-diffusion keeps a step's length before it has computed one
            ask()
        np.testing.assert_array_equal(y, denoiser(network, LEVELS)(x, float(sigmas[0])))
        return
    z = ask().numpy()
    assert np.linalg.norm(y - z) <= 1e-12 * np.linalg.norm(z)


@pytest.mark.parametrize("s_tmax", [10.0, float("inf")])
@pytest.mark.parametrize("name", ["euler", "heun", "dpm2"])
def test_churn(model, name, s_tmax, monkeypatch):
    """k-diffusion draws noise at every step, and uses it where gamma is not 0: one stream for both."""
    sigmas = karras(8, LEVELS)
    x = start(sigmas[0])
    told = {"s_churn": 3.0, "s_tmin": 0.1, "s_tmax": s_tmax, "s_noise": 1.003}
    y = SAMPLERS[name](denoiser(network, LEVELS), x, sigmas, independent(Philox(7), x.shape), churn=Churn(**told))
    rng = Philox(7)
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.from_numpy(rng.randn(tuple(x.shape))).double())
    function, _ = THEIRS[name]
    z = function(model, torch.from_numpy(x), torch.from_numpy(sigmas), disable=True, **told).numpy()
    assert np.linalg.norm(y - z) <= 1e-12 * np.linalg.norm(z)


@pytest.mark.parametrize("eta", [0.0, 0.7])
@pytest.mark.parametrize("n", [2, 3, 4, 20])
def test_dpm_fast(model, n, eta):
    sigmas = karras(n, LEVELS)
    x = start(sigmas[0])
    options = {"eta": eta, "s_noise": 1.05}
    y = dpm_fast(denoiser(network, LEVELS), x, sigmas, independent(Philox(7), x.shape), **options)
    smin, smax = float(sigmas[n - 1]), float(sigmas[0])
    fresh = tensor_noise(independent(Philox(7), x.shape))
    z = S.sample_dpm_fast(model, torch.from_numpy(x), smin, smax, n, disable=True, noise_sampler=fresh, **options)
    assert np.linalg.norm(y - z.numpy()) <= 1e-10 * np.linalg.norm(z)


@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_dpm_adaptive(model, eta):
    sigmas = karras(20, LEVELS)
    x = start(sigmas[0])
    mine, theirs = Trajectory(), Trajectory()
    options = {"eta": eta, "s_noise": 1.05}
    y = dpm_adaptive(denoiser(network, LEVELS), x, sigmas, independent(Philox(7), x.shape), mine.ours, **options)
    smin, smax = float(sigmas[-2]), float(sigmas[0])
    draw = independent(Philox(7), x.shape)
    z = S.sample_dpm_adaptive(
        model,
        torch.from_numpy(x),
        smin,
        smax,
        callback=theirs.theirs,
        disable=True,
        # Without eta k-diffusion draws, and multiplies by 0.
        noise_sampler=tensor_noise(draw) if eta else lambda *_: torch.zeros(x.shape),
        **options,
    ).numpy()
    assert len(mine.steps) == len(theirs.steps) >= 9
    assert np.linalg.norm(y - z) <= 1e-10 * np.linalg.norm(z)


# The tree rounds its ends to six digits, and says so where the largest sigma lies above its own rounding.
@pytest.mark.filterwarnings("ignore:Should have")
@pytest.mark.parametrize("seed", [7, [3, 4]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_brownian_noise(seed, dtype):
    """Steps in order, a step in parts, a step seen twice; against torchsde's tree in k-diffusion's wrapper."""
    sigmas = karras(9, LEVELS)
    x = torch.zeros((2, 4, 6, 5), dtype=getattr(torch, dtype))
    theirs = S.BrownianTreeNoiseSampler(x, sigmas[-2], sigmas[0], seed)
    ours = brownian_noise(x.numpy(), sigmas, seed)
    # Its sigmas, and the root of their difference, are float32 where the latents are.
    atol = {"float32": 2e-6, "float64": 1e-14}[dtype]
    for sigma, sigma_next in [*pairwise(sigmas[:-1]), (sigmas[3], 0.9 * sigmas[3]), (sigmas[1], sigmas[2])]:
        z = theirs(sigma, sigma_next).numpy()
        np.testing.assert_allclose(ours(sigma, sigma_next), z, rtol=0, atol=atol)
    assert ours(sigmas[0], sigmas[1]).dtype == dtype
