"""refsd's samplers, schedules and noise against runs of stable-diffusion.cpp: fixtures/sdcpp_trajectories.npz.

Recorded by benchmarks/sdcpp_samplers_study.py; the peers suite runs the program itself.
"""

from pathlib import Path

import numpy as np
import pytest
import sdcpp_float32
import sdcpp_trajectories
from sdcpp_float32 import DEVIATIONS
from sdcpp_trajectories import SamplerRun, Seen, compare, float32_levels, seen

from refsd.engines.sdcpp.tap import Graph
from refsd.pipelines import sampling
from refsd.samplers import SAMPLERS
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES

RECORDED = np.load(Path(__file__).parents[1] / "fixtures" / "sdcpp_trajectories.npz")
LEVELS = float32_levels()


NAMES = list(dict.fromkeys(name.rpartition("/")[0] for name in RECORDED.files if "/" in name))
RUNS = {SamplerRun.of(name): Seen(*(RECORDED[f"{name}/{field}"] for field in Seen._fields)) for name in NAMES}


def test_all_are_there():
    assert len({asked.sampler for asked in RUNS}) == 15 and len({asked.schedule for asked in RUNS}) == 11
    assert sum(asked.eta is not None for asked in RUNS) == 7


@pytest.mark.parametrize("asked", RUNS, ids=lambda asked: f"{asked.sampler}/{asked.schedule}/{asked.eta}")
def test_every_step(asked):
    """From the run's own latents, by float32 levels; where its own formulas lose more in float32 the docs say."""
    apart = compare(asked, RUNS[asked], LEVELS)
    assert apart.steps.max() < (1e-5 if asked.sampler in DEVIATIONS else 1e-6)
    assert apart.t < (2e-3 if asked.schedule == "kl_optimal" else 2e-4)
    assert apart.margin < (40 if asked.sampler in DEVIATIONS else 1)


@pytest.mark.parametrize("asked", RUNS, ids=lambda asked: f"{asked.sampler}/{asked.schedule}/{asked.eta}")
def test_float64_levels_are_a_hundred_thousandth_away(asked):
    apart = compare(asked, RUNS[asked], SD_LEVELS)
    assert apart.steps.max() < 2e-5
    assert apart.t < 3e-3


@pytest.mark.parametrize("asked", [asked for asked in RUNS if asked.sampler in DEVIATIONS], ids=lambda a: a.key)
def test_its_own_scalars_explain_the_rest(asked):
    """With the sampler's declared deviation each element of each step lies inside float32's bound."""
    apart = compare(asked, RUNS[asked], LEVELS, deviation=True)
    assert apart.margin < 1 and apart.steps.max() < 7e-7


@pytest.mark.parametrize(
    "asked", [SamplerRun("dpm++2s_a", "kl_optimal", 4), SamplerRun("tcd", "karras", 5, eta=0.5)]
)
def test_without_its_own_scalars_these_lie_outside(asked):
    with_them = compare(asked, RUNS[asked], LEVELS, deviation=True)
    without = compare(asked, RUNS[asked], LEVELS)
    assert without.margin > 2 and without.margin > 10 * with_them.margin


def test_the_same_formulas_in_wider_scalars_are_the_samplers(monkeypatch):
    """In float64 the deviations vanish: what is left is the sampler of that name."""
    monkeypatch.setattr(sdcpp_float32, "_F", np.float64)
    monkeypatch.setattr(sdcpp_float32, "_ONE", 1.0)
    sigmas, x = SCHEDULES["discrete"](6, SD_LEVELS), np.linspace(-3, 4, 5)
    model = lambda x, sigma: np.tanh(x) / (1 + sigma)
    for name, (deviation, run) in DEVIATIONS.items():
        for eta in (0.0, 0.4):
            noise = lambda sigma, sigma_next: np.cos(np.arange(5) * sigma)
            right = sampling.method(name, eta).run(model, x * 14, sigmas, noise)
            mine = run(model, x * 14, sigmas, noise, eta=eta)
            np.testing.assert_allclose(mine, right, rtol=2e-6 if name == "tcd" else 1e-9)
        assert deviation.name.startswith("sdcpp/")


def test_float32_sigmas():
    """They are the schedules', to float32; ays and kl_optimal by some bits more."""
    for n in (2, 4, 5, 11):
        for name, bound in (("discrete", 4e-7), ("ays", 2e-6), ("kl_optimal", 2e-6)):
            mine = sdcpp_float32.float32_sigmas(name, n, LEVELS)
            if mine is not None:
                np.testing.assert_allclose(mine, SCHEDULES[name](n, LEVELS), rtol=bound)
    assert sdcpp_float32.float32_sigmas("ays", 10, LEVELS) is None
    assert sdcpp_float32.float32_sigmas("karras", 5, LEVELS) is None


def test_float32_levels():
    ratio = LEVELS.sigmas / SD_LEVELS.sigmas
    assert 1e-6 < np.abs(ratio - 1).max() < 2e-5
    assert (np.diff(LEVELS.sigmas) > 0).all()


def half_the_noise(*given, s_noise):
    return SAMPLERS["er_sde"](*given, s_noise=0.5)


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        (SamplerRun("tcd", "karras", 5), {"tcd": SAMPLERS["tcd"]}),
        (SamplerRun("ipndm_v", "karras", 5), {"ipndm_v": SAMPLERS["ipndm"]}),
        (SamplerRun("dpm++2mv2", "karras", 5), {"dpm++2mv2": SAMPLERS["dpm++2m"]}),
        (
            SamplerRun("er_sde", "karras", 5, eta=0.5),
            {"er_sde": lambda *given, s_noise: SAMPLERS["er_sde"](*given, s_noise=0.5)},
        ),
    ],
    ids=lambda given: given.sampler if isinstance(given, SamplerRun) else "",
)
def test_another_engines_sampler_is_not_the_same(asked, wrong, monkeypatch):
    """What is sdcpp's own in refsd is needed."""
    monkeypatch.setattr(sdcpp_trajectories.sampling, "_SDCPP_SAMPLERS", wrong)
    assert compare(asked, RUNS[asked], LEVELS).steps.max() > 5e-5


def test_another_schedule_or_seed_is_noticed(monkeypatch):
    asked = SamplerRun("dpm++2m", "karras", 4)
    assert compare(asked._replace(seed=43), RUNS[asked], LEVELS).steps[0] > 0.1
    monkeypatch.setitem(SCHEDULES, "karras", SCHEDULES["exponential"])
    assert compare(asked, RUNS[asked], LEVELS).t > 10


def test_another_number_of_calls_is_said():
    asked = SamplerRun("dpm++2m", "karras", 4)
    with pytest.raises(ValueError, match="calls its UNet 4 times, refsd 7 times"):
        compare(asked._replace(sampler="heun"), RUNS[asked], LEVELS)


def test_guidance_pairs_graphs():
    def unet(value, sigma_t):
        inputs = [np.full(1, sigma_t, np.float32), np.zeros((4, 2, 2), np.float32), np.zeros((77, 768), np.float32)]
        return Graph("f32:1,f32:2x2x4,f32:768x77x1x1", inputs, np.full((4, 2, 2), value, np.float32))

    decoder = Graph("f32:2x2x4x1", [np.ones((4, 2, 2), np.float32)])
    text = Graph("i32:77", [np.zeros(77, np.int32)])
    run = seen([text, unet(2.0, 999.0), unet(1.0, 999.0), decoder], 7.0)
    assert run.x.shape == (1, 4, 2, 2) and run.t.tolist() == [999.0]
    np.testing.assert_allclose(run.eps, 8.0)
    np.testing.assert_allclose(run.latent, np.float32(0.18215))
