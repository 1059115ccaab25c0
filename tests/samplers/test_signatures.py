"""What all samplers have in common: a callback hears of each step; settings that nobody gives are the papers'."""

import inspect

import numpy as np
import pytest

from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.noise import Philox, independent
from refsd.samplers.step import StepsError

KINDS = {"": SAMPLERS, "flow ": FLOW_SAMPLERS, "cfg++ ": CFG_PP_SAMPLERS}
EVERY = {f"{kind}{name}": sampler for kind, samplers in KINDS.items() for name, sampler in samplers.items()}
# These choose their steps themselves.
OWN_STEPS = ("dpm_fast", "dpm_adaptive")

# k-diffusion, ComfyUI and diffusers agree on these; what has an eta of 0 draws noise only when it is asked to.
DEFAULTS = {
    "eta": 1.0,
    "s_noise": 1.0,
    "r": 0.5,
    "gamma": 2.0,
    "order": 3,
    "predictor": 3,
    "corrector": 4,
    "points": 200,
    "lower_order_final": False,
    "tau_at_start": False,
    "midpoint": False,
    "in_v": False,
}
OTHERS = {(name, "order"): 4 for name in ("lms", "lms_to_denoised", "lms_shifted")}
OTHERS |= {("tcd", "eta"): 0.3, ("ddim_strided", "eta"): 0.0, ("pndm_v", "in_v"): True}
OTHERS |= {(name, "r"): 1.0 for name in EVERY if name.endswith("exp_heun_2_x0_sde")}
OTHERS |= {(name, "lower_order_final"): True for name in EVERY if "uni_pc" in name}
OTHERS |= {(name, "eta"): 0.0 for name in ("dpm_fast", "dpm_adaptive", "res_multistep", "res_2s")}
OTHERS |= {(name, "eta"): 0.0 for name in ("flow res_multistep", "flow res_2s", "cfg++ res_multistep_cfg_pp")}


def denoiser(name: str):
    def one(x, sigma):
        return (x + 0.3 * sigma) / (1 + sigma**2)

    return (lambda x, sigma: (one(x, sigma), 0.5 * one(x, sigma))) if "cfg_pp" in name else one


@pytest.mark.parametrize("name", EVERY)
def test_a_callback_hears_of_every_step(name):
    """Its number, its sigma, the latents before it, and what the model made of them."""
    flow = name.startswith("flow ")
    sigmas = np.linspace(1.0, 0.0, 6) if flow else np.append(np.geomspace(14.0, 0.03, 5), 0.0)
    x = np.linspace(-2, 3, 6).reshape(1, 1, 2, 3)
    heard = []
    noise = independent(Philox(1), x.shape)
    EVERY[name](denoiser(name), x, sigmas, noise, callback=lambda *told: heard.append(told))
    numbers, at, latents, denoised = zip(*heard, strict=True)
    assert list(numbers) == list(range(len(numbers)))
    np.testing.assert_allclose(at[0], sigmas[0], rtol=2e-4)  # a flow's solver may begin at 0.9999
    if name not in OWN_STEPS:
        np.testing.assert_allclose(at, sigmas[:-1], rtol=2e-4)
    np.testing.assert_allclose(latents[0], x, rtol=1e-12)
    for sigma, before, told in zip(at[:1], latents, denoised, strict=False):
        made = denoiser(name)(before, sigma)
        np.testing.assert_allclose(told, made[0] if "cfg_pp" in name else made, rtol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_settings_that_nobody_gives(name):
    for setting, parameter in inspect.signature(EVERY[name]).parameters.items():
        if setting in DEFAULTS:
            assert parameter.default == OTHERS.get((name, setting), DEFAULTS[setting]), setting
        elif setting == "churn":
            assert parameter.default == (0.0, 0.0, np.inf, 1.0, True)


# tcd has an eta of at most 1.
WITH_ETA = [name for name in EVERY if name != "tcd" and "eta" in inspect.signature(EVERY[name]).parameters]
# They take a root or a logarithm of the sigma that they step down to.
NOT_BELOW_0 = ("dpm2_a", "dpm++2s_a", "dpm++2s_a_below_one", "res_multistep", "res_2s", "dpm++2s_a_cfg_pp")


@pytest.mark.jitted
@pytest.mark.parametrize("eta", [0.3, 1.5, 40.0])
@pytest.mark.parametrize("name", WITH_ETA)
def test_any_eta_is_numbers_or_a_refusal(name, eta):
    """A flow's step with an eta above 1 may go below 0."""
    flow = name.startswith("flow ")
    x = np.linspace(-2, 3, 6).reshape(1, 1, 2, 3)
    # dpm_adaptive reads the first and the last sigma alone.
    for n in (9,) if name.endswith("dpm_adaptive") else (2, 3, 9):
        sigmas = np.linspace(0.98, 0.02, n) if flow else np.geomspace(14.6146, 0.0291675, n)
        run = lambda: EVERY[name](denoiser(name), x, sigmas, independent(Philox(1), x.shape), eta=eta)  # noqa: B023
        if eta > 1 and flow and name.removeprefix("flow ") in NOT_BELOW_0:
            with pytest.raises(StepsError, match=f"eta {eta:g} steps from sigma .* to -.*, not above 0"):
                run()
        else:
            assert np.isfinite(run()).all()


SCALED = [name for name in EVERY if "s_noise" in inspect.signature(EVERY[name]).parameters]


@pytest.mark.parametrize("name", SCALED)
def test_s_noise_scales_the_noise(name):
    """Twice as much of some noise is once of its double."""
    sigmas = np.linspace(0.9, 0.0, 6) if name.startswith("flow ") else np.append(np.geomspace(14.0, 0.03, 5), 0.0)
    x = np.linspace(-2, 3, 6).reshape(1, 1, 2, 3)
    settings = {"eta": 0.7} if "eta" in inspect.signature(EVERY[name]).parameters else {}

    def run(s_noise, factor):
        noise = independent(Philox(1), x.shape)
        drawn = lambda sigma, sigma_next: factor * noise(sigma, sigma_next)
        return EVERY[name](denoiser(name), x, sigmas, drawn, s_noise=s_noise, **settings)

    twice = run(2.0, 1.0)
    np.testing.assert_allclose(twice, run(1.0, 2.0), rtol=1e-9, atol=1e-9)
    assert name == "restart" or abs(twice - run(1.0, 1.0)).max() > 1e-3
