import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import schedules as naive

from refsd.samplers.levels import (
    DiscreteLevels,
    FlowLevels,
    NearestLevels,
    scaled_linear_alphas_cumprod,
    shift_exponential,
    shift_snr,
    training_sigmas,
    zero_terminal_snr,
)
from refsd.samplers.schedules import SCHEDULES, discrete, flow, karras, tables, timesteps
from refsd.samplers.schedules.sigmas import custom

SIGMAS = training_sigmas(scaled_linear_alphas_cumprod())
LEVELS = DiscreteLevels(SIGMAS)
# Where the first step is not the highest level, or the last not the lowest, or n is only asked for.
NOT_FROM_THE_TOP = {"vp", "ddim_uniform", "leading", "leading_multistep", "gits"}
NOT_FROM_THE_TOP |= {"ays", "ays_11", "ays_32", "ays_gits"}
NOT_TO_THE_BOTTOM = NOT_FROM_THE_TOP | {"sgm_uniform", "simple", "beta", "smoothstep", "lcm", "turbo", "trailing"}
NOT_TO_THE_BOTTOM |= {"bong_tangent", "linear_quadratic", "kl_optimal_to_smin", "linspace_multistep"}
# Of one step: from the middle of the range, from the bottom.
ONE_STEP = {"bong_tangent", "linspace"}


def test_levels_of_stable_diffusion():
    np.testing.assert_allclose(SIGMAS, naive.training_sigmas(), rtol=1e-12)
    np.testing.assert_allclose(SIGMAS[[0, -1]], [0.02916715815, 14.6146412293], rtol=1e-9)


@pytest.mark.parametrize("n", [2, 4, 20, 999, 1000, 1500])
def test_discrete_against_naive(n):
    t = [999 * (n - 1 - i) / (n - 1) for i in range(n)]
    expected = [naive.t_to_sigma(u, naive.training_sigmas()) for u in t] + [0.0]
    np.testing.assert_allclose(discrete(n, LEVELS), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [2, 4, 20, 100])
def test_karras_against_naive(n):
    np.testing.assert_allclose(karras(n, LEVELS), naive.karras(n, SIGMAS[0], SIGMAS[-1]), rtol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n", [1, 2, 5, 20, 50])
def test_every_schedule_falls(name, n):
    if name == "gits" and n == 1:
        return
    sigmas = SCHEDULES[name](n, LEVELS)
    assert sigmas.dtype == np.float64 and (np.diff(sigmas) < 0).all()
    assert sigmas[-1] == (SIGMAS[0] if name == "kl_optimal_to_smin" else pytest.approx(0, abs=1e-12))
    if name not in ("ddim_uniform", "beta"):
        assert sigmas.shape == (n + 1,)
    if name not in NOT_FROM_THE_TOP and (n > 1 or name not in ONE_STEP):
        np.testing.assert_allclose(sigmas[0], SIGMAS[-1], rtol=1e-12)
    if n > 1 and name not in NOT_TO_THE_BOTTOM:
        np.testing.assert_allclose(sigmas[-2], SIGMAS[0], rtol=1e-12)


def test_levels_by_hand():
    """Five levels at t 0 .. 4, two steps: who takes which."""
    levels = DiscreteLevels(np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    taken = {
        "discrete": [16, 1, 0],
        "sgm_uniform": [16, 4, 0],
        "simple": [16, 4, 0],
        "ddim_uniform": [8, 2, 0],
        "turbo": [16, 4, 0],
        "smoothstep": [16, 4, 0],
        "beta": [16, 4, 0],
        "leading": [8, 2, 0],
        "linspace": [16, 1, 0],
        "leading_multistep": [8, 4, 0],
        "linspace_multistep": [16, 4, 0],
        "trailing": [16, 2, 0],
        "exponential": [16, 1, 0],
    }
    for name, expected in taken.items():
        np.testing.assert_allclose(SCHEDULES[name](2, levels), expected, atol=1e-12, err_msg=name)


def test_one_step_of_linspace_begins_at_timestep_0():
    np.testing.assert_array_equal(SCHEDULES["linspace"](1, LEVELS), [SIGMAS[0], 0])


def test_leading_multistep_ends_at_the_highest_level():
    """Of 999 steps t = i + 1 runs to 1000: one above the highest."""
    np.testing.assert_array_equal(SCHEDULES["leading_multistep"](999, LEVELS)[:2], SIGMAS[[999, 999]])


def test_lcm_takes_the_distilled_timesteps():
    np.testing.assert_allclose(timesteps.lcm(4, LEVELS)[:-1], SIGMAS[[999, 759, 499, 259]], rtol=1e-12)


def test_beta_leaves_doubles_out():
    assert len(timesteps.beta(1000, LEVELS)) < 1001


@pytest.mark.parametrize("n", [2, 10, 15])
def test_align_your_steps(n):
    """In full, stretched, appended: the table's ends, and its own eleven levels."""
    assert tables.align_your_steps(10, tables.AYS_SDXL)[:-1].tolist() == list(tables.AYS_SDXL[:-1])
    sigmas = tables.align_your_steps(n, tables.AYS_SD1)
    np.testing.assert_allclose(sigmas[0], 14.615, rtol=1e-12)
    appended = tables.align_your_steps_appended(n, tables.AYS_SD1)
    np.testing.assert_allclose(appended[[0, -2]], [14.615, 0.029], rtol=1e-12)
    for rounded, exact in ((tables.AYS_SD1, tables.AYS_SD1_LEVELS), (tables.AYS_SDXL, tables.AYS_SDXL_LEVELS)):
        np.testing.assert_allclose(rounded, exact, atol=5e-3)


def test_custom():
    np.testing.assert_array_equal(custom(" [14.6, 7,3 ,0]"), [14.6, 7, 3, 0])
    np.testing.assert_array_equal(custom("1 0.5"), [1, 0.5])
    for bad in ("", "3", "1,2", "3,3", "1,-1", "a,b", "inf,1", "nan,0", "1,,x"):
        with pytest.raises(ValueError, match="expected"):
            custom(bad)


def test_gits():
    np.testing.assert_allclose(tables.gits(2)[:1], 14.61464119)
    assert len(tables.gits(33)) == 34
    for n, coefficient in ((1, 1.2), (16, 0.8), (19, 1.15)):
        with pytest.raises(ValueError, match="no table"):
            tables.gits(n, coefficient=coefficient)


def test_bong_tangent_bends_at_the_middle():
    sigmas = SCHEDULES["bong_tangent"](20, LEVELS)
    middle = SIGMAS[0] + (SIGMAS[-1] - SIGMAS[0]) / 2
    np.testing.assert_allclose(sigmas[12], middle, rtol=1e-12)


def test_flow_schedules():
    """The two ways to shift are one, and Flux's lines go through their points."""
    t = np.linspace(0.01, 1, 9)
    np.testing.assert_allclose(shift_snr(t, np.exp(0.7)), [shift_exponential(u, 0.7) for u in t], rtol=1e-14)
    assert abs(flow.flux_mu(256) - 0.5) < 1e-15 and abs(flow.flux_mu(4096) - 1.15) < 1e-15
    assert flow.flux2_mu(4301, 4) == flow.flux2_mu(4301, 50)
    assert abs(flow.flux2_mu(1024, 200) - (0.00016927 * 1024 + 0.45666666)) < 1e-14
    for sigmas in (
        flow.flow_uniform(5, 3.0),
        flow.ltx2(5),
    ):
        assert sigmas[-1] == 0 and (np.diff(sigmas) < 0).all() and abs(sigmas[0] - 1) < 1e-3
    assert abs(flow.ltx2(5)[-2] - 0.1) < 1e-15
    np.testing.assert_allclose(flow.flow_uniform(4, 3.0), [1, 0.9, 0.75, 0.5, 0], rtol=1e-14)


def test_simple_is_zimages_own_schedule():
    """simple over a flow's levels takes (t + 1) / 1000 at 1000, 875, ...: shift_snr(1 - i / n)."""
    np.testing.assert_allclose(SCHEDULES["simple"](8, FlowLevels(3.0)), flow.flow_uniform(8, 3.0), rtol=1e-12)


def test_zero_terminal_snr():
    abar = scaled_linear_alphas_cumprod()
    rescaled = zero_terminal_snr(abar)
    assert rescaled[-1] == 0 and abs(rescaled[0] - abar[0]) < 1e-15 and (np.diff(rescaled) < 0).all()


def test_nearest_level():
    near = NearestLevels(SIGMAS)
    assert near.to_t(float(LEVELS.to_sigma(417.4))) == 417 and near.to_t(float(LEVELS.to_sigma(417.6))) == 418


@given(st.floats(0, 999))
def test_t_comes_back_from_its_sigma(t):
    assert abs(LEVELS.to_t(float(LEVELS.to_sigma(t))) - t) < 1e-9


def test_t_is_clamped_to_the_levels():
    assert LEVELS.to_t(1e-3) == 0 and LEVELS.to_t(100.0) == 999


def test_stated_distance_of_float32_levels():
    """The docstring's figures, with stable-diffusion.cpp's loop in float32."""
    f = np.float32
    low, high = np.sqrt(f(0.00085)), np.sqrt(f(0.012))
    kept, levels = f(1), []
    for i in range(1000):
        beta = (low + (high - low) * (f(i) / f(999))) ** 2
        kept = kept * (f(1) - beta)
        levels.append(np.sqrt((f(1) - kept) / kept))
    error = np.abs(np.array(levels) / SIGMAS - 1)
    assert 1.2e-5 < error.max() < 1.4e-5
    assert error[-1] < 1.1e-6


def test_a_flow_whose_lowest_level_is_shifted_twice():
    """SD 3 in diffusers: 3 t / (1 + 2 t) of 1, ..., and of 3/1002, itself the shift of 1/1000."""
    t = np.array([1.0, (1 + 3 / 1002) / 2, 3 / 1002])
    np.testing.assert_allclose(flow.FLOW_SCHEDULES["flow_linspace"](3, FlowLevels(3.0)), [*3 * t / (1 + 2 * t), 0])
    uniform = flow.FLOW_SCHEDULES["flow_uniform"](4, FlowLevels(3.0))
    np.testing.assert_allclose(uniform, [1, 0.9, 0.75, 0.5, 0], rtol=1e-15)


def test_qwen_images_schedule_ends_at_its_terminal():
    """1024 x 1024: mu 0.5 + 0.4 * 3840 / 7936; the flow's times, stretched to end at 0.02."""
    assert flow.qwen_image_mu(4096) == pytest.approx(0.6935483870967742)
    mu = flow.qwen_image_mu(4096)
    sigmas = flow.FLOW_SCHEDULES["flow_terminal"](4, FlowLevels(np.exp(mu)))
    shifted = flow.flow_uniform(4, np.exp(mu))
    assert sigmas[0] == 1 and sigmas[3] == pytest.approx(0.02, rel=1e-12) and sigmas[4] == 0
    np.testing.assert_allclose((1 - sigmas[1:4]) / (1 - shifted[1:4]), 0.98 / (1 - shifted[3]), rtol=1e-12)
    assert flow.flow_terminal(1, 3.0).tolist() == [1, 0]
