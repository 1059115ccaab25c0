"""Every sampler on data whose denoiser is known: a Gaussian of mean m and standard deviation s, point by point.

denoised = (s^2 x + sigma^2 m) / (s^2 + sigma^2)
the ODE's solution: (x - m) / sqrt(s^2 + sigma^2) is constant
"""

import numpy as np
import pytest

from refsd.samplers import SAMPLERS
from refsd.samplers.ancestral import flow_ancestral_step
from refsd.samplers.cfg_pp import euler_ancestral_cfg_pp, euler_cfg_pp
from refsd.samplers.distilled import lcm_flow
from refsd.samplers.dpm_solver import dpm_adaptive, dpm_fast
from refsd.samplers.dpmpp_2s_ancestral import dpmpp_2s_ancestral_flow
from refsd.samplers.euler_ancestral import euler_ancestral
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.lms import adams_bashforth
from refsd.samplers.noise import Philox, independent
from refsd.samplers.res import res_multistep

MEAN, SPREAD = 0.7, 0.5
# A multistep sampler begins with a step of order 1, whose error, of h^2, stays the largest.
ORDERS = {"euler": 1, "heun": 2, "dpm2": 2, "lms": 2, "dpm++2m": 2, "dpm++2mv2": 2, "deis": 2, "plms": 2}
SDE_ORDERS = {
    "euler_a": 1,
    "dpm2_a": 2,
    "dpm++2s_a": 2,
    "dpm++sde": 2,
    "dpm++2m_sde": 2,
    "dpm++2m_sde_heun": 2,
    "dpm++3m_sde": 2,
    "res_multistep": 2,
    "res_2s": 2,
}


def gaussian(x, sigma):
    return (SPREAD**2 * x + sigma**2 * MEAN) / (SPREAD**2 + sigma**2)


def solution(x, sigma, sigma_next):
    return MEAN + (x - MEAN) * np.sqrt((SPREAD**2 + sigma_next**2) / (SPREAD**2 + sigma**2))


def error(name: str, n: int, **options) -> float:
    """Of n steps from sigma 3 to 0.3, evenly spaced in ln sigma."""
    sigmas = np.exp(np.linspace(np.log(3.0), np.log(0.3), n + 1))
    x = np.linspace(-4, 5, 7)
    y = SAMPLERS[name](gaussian, x, sigmas, lambda *_: np.zeros(7), **options)
    return float(abs(y - solution(x, 3.0, 0.3)).max())


@pytest.mark.parametrize("name", ORDERS)
def test_order(name):
    """Twice the steps, 2^order times less error."""
    measured = np.log2(error(name, 320) / error(name, 640))
    assert abs(measured - ORDERS[name]) < 0.06


@pytest.mark.parametrize("name", SDE_ORDERS)
def test_order_without_noise(name):
    """At eta 0 an ancestral or SDE sampler solves the ODE; what some still draw is multiplied by 0."""
    measured = np.log2(error(name, 320, eta=0.0) / error(name, 640, eta=0.0))
    assert abs(measured - SDE_ORDERS[name]) < 0.06


def test_lms_is_of_order_4_once_it_has_its_history():
    """The last of many steps: its own error, the others' taken away, falls by 2^5."""

    def last_step(h):
        sigmas = 1.0 - h * np.arange(5)
        slopes = [(x - gaussian(x, s)) / s for s in sigmas[3::-1] for x in [solution(4.0, 3.0, s)]]
        moved = np.array(adams_bashforth(sigmas, 4)[3]) @ np.array(slopes)
        return abs(solution(4.0, 3.0, sigmas[3]) + moved - solution(4.0, 3.0, sigmas[4]))

    assert abs(np.log2(last_step(0.02) / last_step(0.01)) - 5) < 0.3


def test_dpm_fast_takes_three_calls_a_step():
    calls = []

    def counting(x, sigma):
        calls.append(sigma)
        return gaussian(x, sigma)

    for n in (2, 3, 10, 11, 12):
        calls.clear()
        y = dpm_fast(counting, np.array([4.0]), np.geomspace(3.0, 0.3, n + 1))
        assert len(calls) == n
    assert abs(y - solution(4.0, 3.0, 0.3))[0] < 0.02


def test_dpm_adaptive_spends_calls_where_they_are_needed():
    calls = []

    def counting(x, sigma):
        calls.append(sigma)
        return gaussian(x, sigma)

    x = np.linspace(-40, 40, 9)
    y = dpm_adaptive(counting, x, np.array([14.0, 1.0, 0.03, 0.0]))
    assert abs(y - solution(x, 14.0, 0.03)).max() < 0.1
    assert len(calls) < 200


@pytest.mark.jitted
@pytest.mark.parametrize("name", [*SDE_ORDERS, "er_sde"])
def test_the_noise_restores_the_data(name):
    """20000 points, 200 steps: mean and standard deviation of the Gaussian, within five standard errors."""
    sigmas = np.append(np.geomspace(20.0, 0.02, 200), 0.0)
    x = Philox(1).randn((20000,)).astype(np.float64) * np.hypot(sigmas[0], SPREAD) + MEAN
    options = {"eta": 1.0} if name in SDE_ORDERS else {}
    y = SAMPLERS[name](gaussian, x, sigmas, independent(Philox(2), x.shape), **options)
    assert abs(y.mean() - MEAN) < 5 * SPREAD / np.sqrt(len(y))
    assert abs(y.std() / SPREAD - 1) < 5 / np.sqrt(2 * len(y)) + 0.02


@pytest.mark.parametrize("name", SAMPLERS)
def test_dtype_and_input_are_kept(name):
    sigmas = np.append(np.geomspace(14.0, 0.03, 6), 0.0)
    x = Philox(1).randn((2, 4, 3, 5)) * np.float32(14)
    before = x.copy()
    seen = []
    y = SAMPLERS[name](
        lambda x, sigma: gaussian(x, sigma).astype(x.dtype),
        x,
        sigmas,
        independent(Philox(2), x.shape),
        lambda i, sigma, x, denoised: seen.append((i, x.dtype, denoised.dtype)),
    )
    assert y.dtype == np.float32 and y.shape == x.shape and np.isfinite(y).all()
    assert (x == before).all()
    assert seen == [(i, np.float32, np.float32) for i in range(len(seen))]


@pytest.mark.parametrize(("name", "order"), [("ipndm", 2), ("ipndm_v", 2), ("euler_ge", 1)])
def test_order_on_even_steps_in_sigma(name, order):
    """iPNDM's weights are those of even steps; gradient estimation at gamma 2 is no second-order rule."""

    def of(n):
        sigmas = np.linspace(3.0, 0.3, n + 1)
        return abs(SAMPLERS[name](gaussian, np.array([4.0]), sigmas) - solution(4.0, 3.0, 0.3))[0]

    assert abs(np.log2(of(320) / of(640)) - order) < 0.1


@pytest.mark.parametrize(("name", "order"), [("dpm++2m", 2), ("dpm++2mv2", 1)])
def test_order_on_uneven_steps(name, order):
    """Long and short steps in ln sigma by turns: the v2 weights cost an order."""

    def of(n):
        lengths = np.where(np.arange(n) % 2, 1.0, 3.0)
        sigmas = 3.0 * 0.1 ** (np.append(0, np.cumsum(lengths)) / lengths.sum())
        return abs(SAMPLERS[name](gaussian, np.array([4.0]), sigmas) - solution(4.0, 3.0, 0.3))[0]

    assert abs(np.log2(of(160) / of(320)) - order) < 0.1


def test_distilled_samplers_by_hand():
    """One step of three: denoised, and what is noised anew."""
    x, n = np.array([4.0]), np.array([0.3])
    sigmas = np.array([3.0, 1.0])
    denoised = gaussian(x, 3.0)
    np.testing.assert_allclose(SAMPLERS["lcm"](gaussian, x, sigmas, lambda *_: n), denoised + n)
    np.testing.assert_allclose(lcm_flow(gaussian, x, sigmas / 4, lambda *_: n), 0.75 * gaussian(x, 0.75) + 0.25 * n)
    s = SD_LEVELS.sigmas[int(0.7 * np.argmin(abs(SD_LEVELS.sigmas - 1)))]
    expected = denoised + s * (x - denoised) / 3 + np.sqrt(1 - s**2) * n
    np.testing.assert_allclose(SAMPLERS["tcd"](gaussian, x, sigmas, lambda *_: n), expected)


def guided(x, sigma):
    return gaussian(x, sigma), gaussian(x, sigma) - 0.1


def test_cfg_pp_without_guidance_is_euler():
    sigmas = np.append(np.geomspace(14.0, 0.03, 6), 0.0)
    x = np.linspace(-4, 5, 7)
    y = euler_cfg_pp(lambda x, sigma: (gaussian(x, sigma),) * 2, x, sigmas)
    np.testing.assert_allclose(y, SAMPLERS["euler"](gaussian, x, sigmas), atol=1e-13)
    other = euler_ancestral_cfg_pp(guided, x, sigmas, lambda *_: np.zeros(7), eta=0.0)
    np.testing.assert_allclose(other, euler_cfg_pp(guided, x, sigmas), atol=1e-14)


@pytest.mark.jitted
def test_flow_ancestral_noise_restores_the_data():
    """A rectified flow of the same Gaussian: x = (1 - sigma) data + sigma n."""

    def denoised(x, sigma):
        signal = (1 - sigma) ** 2 * SPREAD**2
        return MEAN + (1 - sigma) * SPREAD**2 / (signal + sigma**2) * (x - (1 - sigma) * MEAN)

    sigmas = np.linspace(1.0, 0.0, 201)
    x = Philox(1).randn((20000,)).astype(np.float64)
    noise = independent(Philox(2), x.shape)
    for y in (
        euler_ancestral(denoised, x, sigmas, noise, ancestral=flow_ancestral_step),
        dpmpp_2s_ancestral_flow(denoised, x, sigmas, noise),
        res_multistep(denoised, x, sigmas, noise, eta=1.0, ancestral=flow_ancestral_step),
    ):
        assert abs(y.mean() - MEAN) < 5 * SPREAD / np.sqrt(len(y))
        assert abs(y.std() / SPREAD - 1) < 0.05


def test_er_sde_by_hand():
    """Two steps from 2 over 1 to 1/2, without noise: the integral as a sum of 200 left ends."""

    def phi(s):
        return s * (np.exp(s**0.3) + 10)

    x = np.array([3.0])
    d0 = gaussian(x, 2.0)
    r = phi(1.0) / phi(2.0)
    x1 = r * x + (1 - r) * d0
    d1 = gaussian(x1, 1.0)
    r = phi(0.5) / phi(1.0)
    integral = sum(0.0025 / phi(0.5 + 0.0025 * p) for p in range(200))
    expected = r * x1 + (1 - r) * d1 + (-0.5 + integral * phi(0.5)) * (d1 - d0) / (1.0 - 2.0)
    y = SAMPLERS["er_sde"](gaussian, x, np.array([2.0, 1.0, 0.5]), lambda *_: x, s_noise=0.0)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
