"""A solver with one thing changed in its text is named where no known bug explains a trajectory."""

import re

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.generic.formula_variants import Text
from refsd.causes.generic.running_code import swapped
from refsd.causes.trajectory.diagnose import diagnose
from refsd.causes.trajectory.mutants import stepping_on
from refsd.causes.trajectory.simulate import simulate
from refsd.numerics.profiles import FLOAT32
from refsd.samplers.dpmpp_2s_ancestral import dpmpp_2s_ancestral
from refsd.samplers.heun import heun
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES
from refsd.trajectory.run import answer

pytestmark = pytest.mark.jitted


@pytest.mark.parametrize(
    ("case", "sampler", "phrase"),
    [
        ("heun/karras", heun, "heun: sigma in place of sigma_next, in d_2 = (x_2 - denoised_2) / sigma_next"),
        (
            "dpmpp2s_a/karras-eta-0.6",
            dpmpp_2s_ancestral,
            "dpmpp_2s_ancestral: sigma_next in place of sigma_mid, in denoised_2 = model(x_2, sigma_mid)",
        ),
        (
            "dpmpp2s_a/karras-eta-0.6",
            dpmpp_2s_ancestral,
            "dpmpp_2s_ancestral: expm1 left out throughout",
        ),
    ],
)
def test_a_changed_solver_is_named(case, sampler, phrase):
    asked = CASES[f"trajectory/{case}"]
    inputs, function = asked.realize(), sampler.__wrapped__
    variant = next(v for v in Text(function).variants() if v.phrase == phrase)
    with swapped(function, variant.code):
        found = answer(asked, inputs, np.dtype(np.float32))
    assert diagnose(asked, inputs, found, FLOAT32)[0] == phrase


@pytest.mark.parametrize(
    ("case", "other", "says"),
    [
        (
            "dpmpp2m/karras",
            lambda n: SCHEDULES["exponential"](n, SD_LEVELS),
            "exponential's sigmas, not on its own: 14.615, ",
        ),
        (
            "euler/karras",
            lambda n: np.append(14.6146 * np.linspace(1, 0.1, n) ** 2, 0),
            "other sigmas, not on its own: 14.615, 8.7779, ",
        ),
    ],
)
def test_a_sampler_that_ignores_the_given_sigmas(case, other, says):
    case = CASES[f"trajectory/{case}"]
    inputs = case.realize()
    sigmas = answer(case, inputs, np.dtype(np.float64))["sigmas"]
    noise = inputs["noise"].values().astype(np.float32)
    found = simulate(case, noise, sigmas, stepping_on(other(len(sigmas) - 1)))
    assert found is not None
    (named,) = diagnose(case, inputs, found.outputs(), FLOAT32)
    assert named.startswith(f"the sampler steps on {says}"), named


def test_weights_that_no_formula_gives_are_told():
    case = CASES["trajectory/euler/karras"]
    inputs = case.realize()
    found = answer(case, inputs, np.dtype(np.float32))
    latent = found["x"][-1] * np.float32(0.25) + found["denoised"][-1] * np.float32(0.5)
    (named,) = diagnose(case, inputs, {**found, "latent": latent}, FLOAT32)
    assert named == "in latent x[4] 0.25 times for 0 and denoised[4] 0.5 times for 1"


def test_a_wrong_sigma_is_told_and_a_division_by_the_last():
    case = CASES["trajectory/euler/karras"]
    inputs = case.realize()
    found = answer(case, inputs, np.dtype(np.float32))
    share = np.float32(0.3 * found["sigmas"][0])
    x = found["x"].copy()
    x[1] = found["denoised"][0] + (found["x"][0] - found["denoised"][0]) * np.float32(0.3)
    (named,) = diagnose(case, inputs, {**found, "x": x}, FLOAT32)
    assert named.startswith(f"x[1] goes to sigma {share:.4g}")
    (named,) = diagnose(case, inputs, {**found, "latent": found["latent"] * np.float32(np.nan)}, FLOAT32)
    assert named.startswith("the last step gives NaN: it divides by the last sigma")


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda sigma, to: to * to / sigma, "the step done twice"),
        (lambda sigma, to: (sigma + to) / 2, "the mean of both, as of half a step"),
        (lambda sigma, to: to + 0.1 * (sigma - to), ""),
    ],
)
def test_what_is_taken_for_the_end_of_a_step_is_told(end, says):
    case = CASES["trajectory/euler/karras"]
    inputs = case.realize()
    found = answer(case, inputs, np.dtype(np.float32))
    sigma, to = (float(s) for s in found["sigmas"][:2])
    x = found["x"].copy()
    x[1] = found["denoised"][0] + (found["x"][0] - found["denoised"][0]) * np.float32(end(sigma, to) / sigma)
    (named,) = diagnose(case, inputs, {**found, "x": x}, FLOAT32)
    assert named.startswith("x[1] goes to sigma") and named.partition(": ")[2] == says, named


@pytest.mark.parametrize("case", ["euler/karras", "dpmpp2m/karras", "lms/karras"])
def test_of_dependent_terms_the_fewest_are_told(case):
    """Latents of a trajectory are sums of one another: one wrong weight must not be told as several."""
    case = CASES[f"trajectory/{case}"]
    inputs = case.realize()
    found = answer(case, inputs, np.dtype(np.float32))
    x = found["x"].copy()
    x[3] = x[3] + np.float32(0.1137) * found["denoised"][2]
    (named,) = diagnose(case, inputs, {**found, "x": x}, FLOAT32)
    assert named.startswith("in x[3] denoised[2]") and " and " not in named, named


def test_what_is_not_finite_is_told_where_it_begins():
    case = CASES["trajectory/euler/karras"]
    inputs = case.realize()
    found = answer(case, inputs, np.dtype(np.float32))
    lost = {name: found[name].copy() for name in ("denoised", "latent", "sigmas")}
    lost["latent"][:] = np.nan
    denoised = lost["denoised"].copy()
    denoised[4] = np.nan
    of_the_model = {**lost, "denoised": denoised}
    (named,) = diagnose(case, inputs, {**found, **of_the_model}, FLOAT32)
    assert named.startswith("denoised[4] is not finite, x[4] is")
    lost["sigmas"][-2] = 0
    (named,) = diagnose(case, inputs, {**found, **lost}, FLOAT32)
    assert named.startswith("the last step gives NaN, and the sigmas are wrong: ")


def _changed(name, **outputs):
    case = CASES[f"trajectory/{name}"]
    inputs = case.realize()
    found = answer(case, inputs, np.dtype(np.float32))
    return diagnose(case, inputs, {**found, **{key: change(found) for key, change in outputs.items()}}, FLOAT32)


def test_a_wrong_start_is_told():
    def start(found):
        x, sigma = found["x"].copy(), found["sigmas"][0]
        x[0] *= np.float32((sigma + 1) / sigma)
        return x

    (named,) = _changed("euler/karras", x=start)
    assert named.endswith("times what it should be: it is noise times 1 more than sigma[0]"), named


def test_an_answer_in_the_place_of_the_other_is_told():
    def latent(found):
        return found["latent"] + np.float32(0.125) * (found["uncond"][1] - found["denoised"][1])

    (named,) = _changed("dpmpp2m_cfg_pp/karras", latent=latent)
    assert named == "uncond stands where denoised belongs, in latent"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: np.append(s[:-1], 0.01), r"karras, in append\(.*, 0.0\): 0.01 for 0"),
        (lambda s: np.insert(s[1:], 0, s[1]), "sigmas: every step is the next, in the first 1 of 6 steps alone"),
        (lambda s: np.append(0.5 * s[:-1], 0), "sigmas is 0.5 times what it should be|0.5 times"),
    ],
)
def test_a_wrong_list_of_sigmas_is_told(change, says):
    named = _changed("euler/karras", sigmas=lambda found: change(found["sigmas"]))
    assert named and re.match(says, named[0]), named
