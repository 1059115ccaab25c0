"""Samplers by sd-cli's names: defaults, eta, noise, and what is refused."""

import numpy as np
import pytest

from refsd.conventions import DEFAULT
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.pipelines.plan import check_ranges
from refsd.pipelines.settings import Settings, read_sigmas
from refsd.samplers import SAMPLERS
from refsd.samplers.brownian import brownian_noise
from refsd.samplers.brownian_sdcpp import bridge_noise, seed_of
from refsd.samplers.distilled import tcd, tcd_sdcpp
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox, independent

SHAPE = (1, 1, 4, 4)
SIGMAS = np.array([3.0, 1.5, 0.7, 0.2, 0.0])


def denoised(x, sigma):
    return np.tanh(x) / (1 + sigma)


def end(name, eta=None, seed=7, flow=False):
    """Where a sampler ends on an analytic model."""
    method, sigmas = sampling.method(name, eta, flow), SIGMAS / 4 if flow else SIGMAS
    x = Philox(42).randn(SHAPE).astype(np.float64) * sigmas[0]
    model = (lambda x, sigma: (denoised(x, sigma), denoised(x, 2 * sigma))) if method.cfg_pp else denoised
    return method.run(model, x, sigmas, method.noise(Philox(seed), x, sigmas, seed), None)


@pytest.mark.parametrize("name", sampling.names())
def test_every_name_runs(name):
    y = end(name, flow=name in sampling.FLOWS_ONLY)
    assert y.shape == SHAPE and np.isfinite(y).all()


def test_names_of_flows_alone():
    """As long as the model is not known they may be asked for."""
    assert {"dpm++2s_a_below_one", "uni_pc_log_snr"} <= set(
        sampling.FLOWS_ONLY
    ) and "euler" not in sampling.FLOWS_ONLY
    check_ranges(Settings("a cat", sampler="uni_pc_log_snr"))
    with pytest.raises(BadInput, match="uni_pc_log_snr: this model is no rectified flow"):
        sampling.method("uni_pc_log_snr", flow=False)


def test_a_flows_solver_in_log_snr_takes_eta():
    assert not np.allclose(end("dpm++2m_sde", 0.3, flow=True), end("dpm++2m_sde", flow=True))
    with pytest.raises(BadInput, match=r"--eta 0.3: dpm\+\+2m_log_snr has no eta"):
        sampling.method("dpm++2m_log_snr", 0.3, flow=True)


@pytest.mark.parametrize("name", ["ddim_trailing", "tcd", "res_multistep", "res_2s"])
def test_sdcli_draws_nothing_here_by_default(name):
    np.testing.assert_array_equal(end(name, seed=1), end(name, seed=2))
    assert not np.allclose(end(name, 0.5, seed=1), end(name, 0.5, seed=2))


@pytest.mark.parametrize("name", ["euler_a", "dpm++2s_a", "er_sde"])
def test_sdcli_draws_here_by_default(name):
    np.testing.assert_array_equal(end(name), end(name, 1.0))
    assert not np.allclose(end(name, seed=1), end(name, seed=2))
    np.testing.assert_array_equal(end(name, 0.0, seed=1), end(name, 0.0, seed=2))


def test_er_sde_is_switched_not_scaled():
    np.testing.assert_array_equal(end("er_sde", 0.25), end("er_sde", 1.0))


def test_ddim_is_euler():
    np.testing.assert_array_equal(end("ddim_trailing"), end("euler"))
    np.testing.assert_array_equal(end("ddim_trailing", 1.0), end("euler_a"))


def test_an_sde_solver_walks_on_a_brownian_motion():
    x = Philox(42).randn(SHAPE).astype(np.float64) * SIGMAS[0]
    y = SAMPLERS["dpm++sde"](denoised, x, SIGMAS, brownian_noise(x, SIGMAS, 7))
    np.testing.assert_array_equal(end("dpm++sde"), y)
    other = SAMPLERS["dpm++sde"](denoised, x, SIGMAS, independent(Philox(7), SHAPE))
    assert not np.allclose(y, other)


def test_sdcpps_own_brownian_motion_and_its_fresh_noise():
    x = Philox(42).randn(SHAPE).astype(np.float64) * SIGMAS[0]
    for name, noise in (
        ("dpm++2m_sde_bt", bridge_noise(x, SIGMAS, seed_of(Philox(7).randn((2,))))),
        ("dpm++2m_sde", independent(Philox(7), SHAPE)),
    ):
        np.testing.assert_array_equal(end(name), SAMPLERS["dpm++2m_sde"](denoised, x, SIGMAS, noise))


def test_default_schedules():
    rows = {"sdcpp": "discrete", "diffusers": "leading"}
    found = {name: DEFAULT.default_schedule(name, rows) for name in ("lcm", "tcd", "ddim_trailing", "euler_a")}
    assert found == {"lcm": "lcm", "tcd": "lcm", "ddim_trailing": "simple", "euler_a": "discrete"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampler": "heum"}, "--sampling-method heum: expected one of euler, .*ddim_trailing, .*euler_cfg_pp"),
        ({"schedule": "x"}, "--scheduler x: expected one of discrete"),
        ({"eta": 1.0, "sampler": "euler"}, "--eta 1.0: euler has no eta"),
        ({"eta": -0.5}, "--eta -0.5: expected 0 to 100"),
        ({"eta": float("nan")}, "--eta nan"),
        ({"eta": 1.5, "sampler": "tcd"}, "--eta 1.5: expected 0 to 1"),
        ({"rng": "std_default"}, "--rng std_default: expected one of cuda, nv, cpu, .*standard library"),
        ({"sampler_rng": "std_default"}, "--sampler-rng std_default"),
        ({"sigmas": (1.0,)}, "--sigmas"),
        ({"sigmas": (1.0, 2.0)}, "--sigmas"),
        ({"sigmas": (1.0, float("nan"))}, "--sigmas"),
        ({"sigmas": (float("inf"), 0.0)}, "--sigmas"),
        ({"sigmas": (1.0, -1.0)}, "--sigmas"),
    ],
)
def test_refused(change, said):
    with pytest.raises(BadInput, match=said):
        check_ranges(Settings("a cat")._replace(**change))


def test_sigmas_are_numbers():
    assert read_sigmas("14.61,7.8,0") == (14.61, 7.8, 0.0)
    with pytest.raises(BadInput, match="--sigmas a,b: expected numbers"):
        read_sigmas("a,b")


def test_tcd_is_sdcpps():
    """Without noise, x keeps the variance of sigma_next: between levels that is not the nearest level's."""
    levels = SD_LEVELS.sigmas
    between = np.array([5.0, (2 * levels[500] + levels[501]) / 3, 0.0])
    x = np.ones(SHAPE)
    method = sampling.method("tcd")
    asked = []
    method.run(lambda x, sigma: asked.append(x.copy()) or 0 * x, x, between, None, None)
    scale = np.sqrt((1 + between[1] ** 2) / (1 + levels[500] ** 2))
    np.testing.assert_allclose(asked[1], levels[500] / 5.0 * scale * x, rtol=1e-12)
    on = np.array([5.0, levels[500], 0.0])
    ends = [run(denoised, x, on, independent(Philox(7), SHAPE), None, eta=0.0) for run in (tcd, tcd_sdcpp)]
    np.testing.assert_allclose(*ends, rtol=1e-12)
    for eta in (0.3, 1.0):
        ends = [run(denoised, x, SIGMAS, independent(Philox(7), SHAPE), None, eta=eta) for run in (tcd, tcd_sdcpp)]
        np.testing.assert_array_equal(*ends)
