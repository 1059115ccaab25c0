"""Orders of convergence and first steps of the solvers that came after k-diffusion's, on a Gaussian.

denoised = (s^2 x + sigma^2 m) / (s^2 + sigma^2);  the ODE keeps (x - m) / sqrt(s^2 + sigma^2)
"""

import numpy as np
import pytest

from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.flow_time import exploding
from refsd.samplers.ipndm_v import published_weights
from refsd.samplers.lms import adams_bashforth
from refsd.samplers.lms_shifted import lms_shifted
from refsd.samplers.noise import Philox, independent
from refsd.samplers.sa_solver import adams_weights, tau_between, two_weights
from refsd.samplers.seeds import midpoint, refined, seeds_2

MEAN, SPREAD = 0.7, 0.5
NOTHING = lambda *_: np.zeros(7)
ODE = {"tau": tau_between(0.0, 1.0, 0.0)}


def gaussian(x, sigma):
    return (SPREAD**2 * x + sigma**2 * MEAN) / (SPREAD**2 + sigma**2)


def flowing(x, sigma):
    """The same as a rectified flow: x = (1 - sigma) data + sigma n."""
    signal = (1 - sigma) ** 2 * SPREAD**2
    return MEAN + (1 - sigma) * SPREAD**2 / (signal + sigma**2) * (x - (1 - sigma) * MEAN)


def solution(x, sigma, sigma_next):
    return MEAN + (x - MEAN) * np.sqrt((SPREAD**2 + sigma_next**2) / (SPREAD**2 + sigma**2))


def error(solver, n: int, spacing=np.geomspace, **options) -> float:
    x = np.linspace(-4, 5, 7)
    y = solver(gaussian, x, spacing(3.0, 0.3, n + 1), NOTHING, **options)
    return float(abs(y - solution(x, 3.0, 0.3)).max())


def order(solver, n: int = 160, **options) -> float:
    return float(np.log2(error(solver, n, **options) / error(solver, 2 * n, **options)))


@pytest.mark.parametrize(
    ("name", "expected", "options"),
    [
        ("exp_heun_2_x0", 2, {}),
        ("exp_heun_2_x0_sde", 2, {"eta": 0.0}),
        ("seeds_2", 2, {"eta": 0.0}),
        ("seeds_3", 3, {"eta": 0.0}),
        ("sa_solver", 3, ODE),
        ("sa_solver_pece", 3, ODE),
        ("deis_tab", 2, {}),
        ("heunpp2", 1, {}),
        ("lms_shifted", 1, {}),
        ("lms_to_denoised", 2, {}),
    ],
)
def test_order(name, expected, options):
    n = {"seeds_3": 40, "sa_solver": 320, "deis_tab": 320}.get(name, 160)
    assert abs(order(SAMPLERS[name], n, **options) - expected) < 0.15


@pytest.mark.jitted
def test_the_sde_restores_the_data():
    """10000 points: mean and spread, within five standard errors; SA-Solver with noise all the way."""
    sigmas = np.append(np.geomspace(20.0, 0.02, 60), 0.0)
    x = Philox(1).randn((10000,)).astype(np.float64) * np.hypot(sigmas[0], SPREAD) + MEAN
    always = {"tau": tau_between(np.inf, 0.0)}
    for name in ("seeds_2", "seeds_3", "exp_heun_2_x0_sde", "restart", "sa_solver", "sa_solver_pece"):
        options = always if name.startswith("sa_") else {}
        y = SAMPLERS[name](gaussian, x, sigmas, independent(Philox(2), x.shape), **options)
        assert abs(y.mean() - MEAN) < 5 * SPREAD / np.sqrt(len(y)), name
        assert abs(y.std() / SPREAD - 1) < 5 / np.sqrt(2 * len(y)) + 0.02, name


@pytest.mark.parametrize("name", FLOW_SAMPLERS)
def test_a_flow_ends_at_the_data(name):
    """4000 points through 60 steps, whatever noise is drawn on the way."""
    x = Philox(1).randn((4000,)).astype(np.float64)
    model = (lambda x, sigma: (flowing(x, sigma),) * 2) if "cfg_pp" in name else flowing
    options = {"tau": tau_between(exploding(0.8), exploding(0.2))} if name.startswith("sa_") else {}
    y = FLOW_SAMPLERS[name](model, x, np.linspace(1.0, 0.0, 61), independent(Philox(2), x.shape), **options)
    assert abs(y.mean() - MEAN) < 0.04
    assert abs(y.std() / SPREAD - 1) < 0.1 or name == "lcm"


@pytest.mark.parametrize("name", CFG_PP_SAMPLERS)
def test_cfg_pp_without_guidance(name):
    """uncond and denoised alike: the sampler of that name without CFG++; but for the first 2S: a newer uncond."""
    sigmas = np.append(np.geomspace(14.0, 0.03, 8), 0.0)
    x = np.linspace(-4, 5, 7)
    noise = [independent(Philox(3), x.shape) for _ in range(2)]
    y = CFG_PP_SAMPLERS[name](lambda x, sigma: (gaussian(x, sigma),) * 2, x, sigmas, noise[0])
    z = SAMPLERS[name.split("_cfg_pp")[0]](gaussian, x, sigmas, noise[1])
    assert np.allclose(y, z, rtol=1e-12, atol=1e-13) is (name != "dpm++2s_a_cfg_pp_first")


def test_dpmpp_2s_cfg_pp_by_hand():
    """One step from 2 to 1: 2S of uncond with its middle, the guidance of the beginning, and noise."""
    x, n = np.array([3.0, -1.0]), np.array([0.3, 0.2])
    uncond = lambda x, sigma: gaussian(x, sigma) - 0.1 * x
    up = np.sqrt(3 / 4)
    down = np.sqrt(1 - up**2)
    middle = np.sqrt(2 * down)
    x_2 = middle / 2 * x + (1 - middle / 2) * uncond(x, 2.0)
    expected = down / 2 * x + (1 - down / 2) * uncond(x_2, middle) + 0.1 * x + up * n
    model = lambda x, sigma: (gaussian(x, sigma), uncond(x, sigma))
    y = CFG_PP_SAMPLERS["dpm++2s_a_cfg_pp"](model, x, np.array([2.0, 1.0]), lambda *_: n)
    np.testing.assert_allclose(y, expected, rtol=1e-13)


def test_dpmpp_2s_cfg_pp_of_a_flow():
    """Without guidance dpmpp_2s_ancestral_flow; with a constant one it moves the last but one by its signal."""
    sigmas, x = np.array([0.9, 0.6, 0.3]), np.linspace(-2, 2, 7)
    told = lambda shift: lambda x, sigma: (flowing(x, sigma) + shift, flowing(x, sigma))
    noise = [independent(Philox(3), x.shape) for _ in range(4)]
    y = FLOW_SAMPLERS["dpm++2s_a_cfg_pp"](told(0.0), x, sigmas, noise[0])
    np.testing.assert_allclose(y, FLOW_SAMPLERS["dpm++2s_a"](flowing, x, sigmas, noise[1]), rtol=1e-12)
    y = FLOW_SAMPLERS["dpm++2s_a_cfg_pp"](told(0.2), x, sigmas[:2], noise[2])
    z = FLOW_SAMPLERS["dpm++2s_a"](flowing, x, sigmas[:2], noise[3])
    np.testing.assert_allclose(y, z + 0.4 * 0.2, rtol=1e-12)


def test_lms_shifted_by_hand():
    """Three steps: the third takes the slope before for both its older weights, and shift 0 is lms."""
    sigmas, x = np.array([3.0, 2.0, 1.2, 0.7]), np.array([4.0, -1.0])
    d0 = (x - gaussian(x, 3.0)) / 3
    x1 = x - d0
    d1 = (x1 - gaussian(x1, 2.0)) / 2
    weights = adams_bashforth(sigmas, 4)
    c = weights[1]
    x2 = x1 + c[0] * d1 + c[1] * d0
    d2 = (x2 - gaussian(x2, 1.2)) / 1.2
    c = weights[2]
    expected = x2 + c[0] * d2 + (c[1] + c[2]) * d1
    np.testing.assert_allclose(lms_shifted(gaussian, x, sigmas), expected, rtol=1e-13)
    np.testing.assert_allclose(lms_shifted(gaussian, x, sigmas, shift=0), SAMPLERS["lms"](gaussian, x, sigmas))


def test_gradient_estimation_ancestral_by_hand():
    sigmas, x, n = np.array([3.0, 2.0, 1.0]), np.array([4.0, -1.0]), np.array([0.3, 0.2])
    up = [2 * np.sqrt(1 - 4 / 9), np.sqrt(1 - 1 / 4)]
    down = [np.sqrt(4 - up[0] ** 2), np.sqrt(1 - up[1] ** 2)]
    d0 = (x - gaussian(x, 3.0)) / 3
    x1 = x + d0 * (down[0] - 3) + up[0] * n
    d1 = (x1 - gaussian(x1, 2.0)) / 2
    expected = x1 + (2 * d1 - d0) * (down[1] - 2) + up[1] * n
    y = SAMPLERS["euler_ge_a"](gaussian, x, sigmas, lambda *_: n)
    np.testing.assert_allclose(y, expected, rtol=1e-13)
    plain = SAMPLERS["euler_ge"](gaussian, x, sigmas)
    np.testing.assert_allclose(SAMPLERS["euler_ge_a"](gaussian, x, sigmas, None, eta=0.0), plain, rtol=1e-14)


@pytest.mark.parametrize("tau", [0.0, 0.7])
def test_adams_weights(tau):
    """Polynomials of t below the order are integrated exactly; the weights add up to 1 - e^(-m h)."""
    m, times, start, end = 1 + tau**2, [0.9, 0.4, -0.1], 0.9, 1.6
    steps = np.array([-0.1, 0.4, 0.9, end])
    b = adams_weights(steps, 0, np.array([1, 2, 3]), 3, np.full(3, m))[2]
    fine = np.linspace(start, end, 200_001)
    for power in range(3):
        integral = np.trapezoid(m * np.exp(m * (fine - end)) * fine**power, fine)
        assert abs(np.dot(b, np.power(times, power)) - integral) < 1e-9
    assert abs(b.sum() + np.expm1(-m * (end - start))) < 1e-14
    simple = two_weights(steps, 0, np.array([1, 2, 2]), 2, np.full(3, m))[2]
    assert abs(simple.sum() - b.sum()) < 1e-14 and abs(simple[1] + m * 0.7**2 / 2 / 0.5) < 1e-14
    one = steps, 1, np.ones(3, int), 1, np.full(3, m)
    np.testing.assert_array_equal(two_weights(*one), adams_weights(*one))
    late = two_weights(steps, 1, np.array([1, 2, 2]), 2, np.full(3, m))[2]
    assert abs(late.sum() - b.sum()) < 1e-14 and abs(late[0] - m * 0.7 / 2) < 1e-14


def test_seeds_weights():
    """r = 1 and k -> 0 is Heun's mean; both rules weigh alike in all."""
    np.testing.assert_allclose(np.array(refined(1e-3, 1.0)) / 1e-3, [0.5, 0.5], atol=1e-3)
    for r in (0.3, 0.5, 1.0):
        assert abs(sum(midpoint(0.8, r)) - sum(refined(0.8, r))) < 1e-15
    x = np.array([4.0])
    first = seeds_2(gaussian, x, np.array([2.0, 1.0]), NOTHING, eta=0.0)
    middle = (x + gaussian(x, 2.0) * (np.sqrt(2) - 1)) / np.sqrt(2)
    np.testing.assert_allclose(first, x / 2 + gaussian(middle, np.sqrt(2)) / 2, rtol=1e-14)


def test_published_ipndm_weights():
    """On even steps up to three are Adams-Bashforth's, four are not; on uneven ones four do not add up to 1."""
    for count in range(1, 4):
        exact = np.negative(adams_bashforth(np.arange(count - 1.0, -2.0, -1.0), count)[-1])
        np.testing.assert_allclose(published_weights([-1.0] * count), exact, rtol=1e-13)
    np.testing.assert_allclose(published_weights([-1.0] * 4), np.array([57, -65, 43, -11]) / 24, rtol=1e-13)
    assert abs(sum(published_weights([1.0, 2.0, 1.5])) - 1) < 1e-15
    assert abs(sum(published_weights([1.0, 2.0, 1.5, 3.0])) - 1) > 0.01


@pytest.mark.parametrize(("name", "expected"), [("dpm++2s", 2), ("dpm++3s", 3)])
def test_orders_along_the_schedule(name, expected):
    """Of steps that are whole groups; a group cut short has a step of first order."""
    assert abs(order(SAMPLERS[name], 150) - expected) < 0.06
    assert error(SAMPLERS[name], 151) > 1.5 * error(SAMPLERS[name], 150)


def test_a_middle_in_the_middle_is_dpmpp_2s():
    """Where sigmas are even in ln sigma two steps are one of dpm++2s_a without its noise."""
    sigmas, x = np.geomspace(3.0, 0.3, 9), np.linspace(-4, 5, 7)
    every_other = SAMPLERS["dpm++2s_a"](gaussian, x, sigmas[::2], NOTHING, eta=0.0)
    np.testing.assert_allclose(SAMPLERS["dpm++2s"](gaussian, x, sigmas), every_other, rtol=1e-13)


def test_third_order_by_hand():
    """One group from 1 by way of 1/2 and 1/4 to 1/8: h = 3 ln 2, r = 2/3."""
    told = iter([np.array([1.0]), np.array([5.0]), np.array([-2.0])])
    y = SAMPLERS["dpm++3s"](lambda x, sigma: next(told), np.array([4.0]), np.array([1.0, 0.5, 0.25, 0.125]))
    expected = 4 / 8 + 7 / 8 + (1 - 7 / 8 / (3 * np.log(2))) * (-2 - 1) * 1.5
    np.testing.assert_allclose(y, expected, rtol=1e-13)
