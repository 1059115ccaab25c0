"""Every line of every card."""

import numpy as np
import pytest

from refsd.conventions import CARDS
from refsd.conventions.sampling import (
    fewer,
    fewer_rounded_up,
    from_the_end,
    from_the_end_sdcpp,
    from_the_end_whole,
    hires_sdcpp,
    stretched,
)
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox, TorchAvx2
from refsd.samplers.webui_noise import first_noise, slerp

SHAPE = (2, 4, 3, 5)
TOP = float(SD_LEVELS.sigmas[-1])


@pytest.mark.parametrize("engine", ["sdcpp", "a1111", "forge"])
def test_a_picture_does_not_depend_on_its_batch(engine):
    noise = CARDS[engine].noise(7, SHAPE)
    for b, picture in enumerate(noise):
        np.testing.assert_array_equal(picture, Philox(7 + b).randn(SHAPE[1:]))
    assert "Philox" in CARDS[engine].rng


@pytest.mark.parametrize("engine", ["comfyui", "diffusers", "k-diffusion"])
def test_one_generator_draws_the_batch(engine):
    np.testing.assert_array_equal(CARDS[engine].noise(7, SHAPE), TorchAvx2(7).randn(SHAPE))
    assert "CPU" in CARDS[engine].rng


ROUNDED = {"sdcpp": False, "comfyui": True, "a1111": False, "forge": True, "diffusers": False, "k-diffusion": False}


@pytest.mark.parametrize("engine", CARDS)
def test_timesteps(engine):
    t = CARDS[engine].levels(SD_LEVELS.sigmas).to_t(float(SD_LEVELS.to_sigma(417.4)))
    assert abs(t - (417 if ROUNDED[engine] else 417.4)) < 1e-9


FIRST = {
    "sdcpp": (TOP, 3.0),
    "comfyui": (np.hypot(TOP, 1), 3.0),
    "a1111": (TOP, 3.0),
    "forge": (TOP, 3.0),
    "diffusers": (np.hypot(TOP, 1), np.hypot(3, 1)),
    "k-diffusion": (TOP, 3.0),
}


@pytest.mark.parametrize("engine", CARDS)
def test_first_latents(engine):
    at_the_top, below = FIRST[engine]
    assert abs(CARDS[engine].first(TOP, TOP) - at_the_top) < 1e-12
    assert abs(CARDS[engine].first(3.0, TOP) - below) < 1e-12


DEFAULTS = {
    "sdcpp": "discrete",
    "comfyui": "normal",
    "a1111": "uniform",
    "forge": "uniform",
    "diffusers": "leading",
    "k-diffusion": "discrete",
}


@pytest.mark.parametrize("engine", CARDS)
def test_default_schedule(engine):
    card = CARDS[engine]
    assert card.schedule == DEFAULTS[engine]
    sigmas = card.sigmas(5, card.schedule, "euler", SD_LEVELS)
    t = [801, 601, 401, 201, 1] if engine == "diffusers" else np.linspace(999, 0, 5)
    np.testing.assert_allclose(sigmas[:-1], SD_LEVELS.to_sigma(np.array(t, float)), rtol=1e-12)


@pytest.mark.parametrize("engine", CARDS)
def test_every_schedule_has_a_name_and_falls(engine):
    for name in CARDS[engine].schedules:
        assert (np.diff(CARDS[engine].sigmas(7, name, "euler", SD_LEVELS)) < 0).all(), name


def test_one_name_two_schedules():
    """Why the cards are there."""
    ours = {
        e: CARDS[e].sigmas(10, "kl_optimal", "euler", SD_LEVELS) for e in ("comfyui", "sdcpp", "a1111", "forge")
    }
    np.testing.assert_array_equal(ours["comfyui"], ours["sdcpp"])
    np.testing.assert_array_equal(ours["a1111"], ours["forge"])
    assert ours["a1111"][-1] > 0 == ours["comfyui"][-1]
    beta = {e: CARDS[e].sigmas(10, "beta", "euler", SD_LEVELS) for e in ("comfyui", "forge")}
    assert abs(beta["comfyui"][5] - beta["forge"][5]) > 1


DISCARDING = {
    "sdcpp": set(),
    "comfyui": {"dpm2", "dpm2_a", "uni_pc", "uni_pc_bh2"},
    "a1111": {"dpm2", "dpm2_a", "dpm++3m_sde"},
    "forge": {"dpm2", "dpm2_a", "dpm++3m_sde"},
    "diffusers": set(),
    "k-diffusion": set(),
}


@pytest.mark.parametrize("engine", CARDS)
def test_penultimate_sigma(engine):
    card = CARDS[engine]
    assert card.discarding == DISCARDING[engine]
    full, some = (card.sigmas(n, "karras", s, SD_LEVELS) for n, s in ((6, "euler"), (5, "dpm2")))
    if "dpm2" in card.discarding:
        np.testing.assert_array_equal(some, full[[0, 1, 2, 3, 4, 6]])
    else:
        assert len(some) == 6 and some[-2] == pytest.approx(SD_LEVELS.sigmas[0])


def linear(n):
    return np.linspace(n, 0, n + 1)


# rule -> (steps, strength) -> steps of the whole schedule, steps that are run
IMG2IMG = {
    from_the_end: {
        (10, 0.75): (10, 8),
        (11, 0.5): (11, 6),
        (10, 1.0): (10, 10),
        (1, 0.5): (1, 1),
        (100, 0.29): (100, 29),
    },
    from_the_end_sdcpp: {
        (10, 0.75): (10, 8),
        (11, 0.5): (11, 6),
        (10, 1.0): (10, 10),
        (1, 0.5): (1, 1),
        (100, 0.29): (100, 30),
        (10, 0.0): (10, 1),
        (2000, 0.9995): (2000, 2000),
    },
    from_the_end_whole: {(10, 0.75): (13, 10), (11, 0.5): (22, 11), (10, 1.0): (10, 10), (1, 0.5): (2, 1)},
    hires_sdcpp: {
        (10, 0.75): (13, 10),
        (11, 0.5): (22, 12),
        (10, 1.0): (10, 10),
        (1, 0.5): (2, 2),
        (10, 0.7): (14, 10),
    },
    stretched: {
        (10, 0.75): (13, 10),
        (11, 0.5): (22, 11),
        (10, 1.0): (10, 10),
        (1, 0.3): (3, 1),
        (10, 0.04): (250, 10),
    },
    fewer: {(10, 0.75): (10, 7), (11, 0.5): (11, 5), (10, 1.0): (10, 10), (1, 0.5): (1, 0), (100, 0.29): (100, 28)},
    fewer_rounded_up: {(10, 0.75): (10, 8), (11, 0.5): (11, 6), (10, 1.0): (10, 10), (1, 0.5): (1, 1)},
}


@pytest.mark.parametrize(
    ("rule", "asked"), [pytest.param(r, a, id=f"{r.__name__}-{a}") for r, cases in IMG2IMG.items() for a in cases]
)
def test_img2img(rule, asked):
    total, run = IMG2IMG[rule][asked]
    np.testing.assert_array_equal(rule(*asked, linear), linear(total)[total - run :])


@pytest.mark.parametrize("rule", [stretched, from_the_end_whole])
def test_no_strength_runs_nothing(rule):
    assert len(rule(10, 0.0, linear)) == 0


TRUNCATION = dict.fromkeys(CARDS, from_the_end) | {
    "sdcpp": from_the_end_sdcpp,
    "comfyui": stretched,
    "diffusers": fewer,
}


@pytest.mark.parametrize("engine", CARDS)
def test_which_img2img(engine):
    assert CARDS[engine].truncation is TRUNCATION[engine]
    assert CARDS[engine].source and CARDS[engine].eta == 1 and CARDS[engine].clip_skip == 1


def test_variation_seed():
    """Strength 0 and 1 are the two seeds; between them the columns' angle is divided."""
    a, b = Philox(5).randn((4, 6, 7)), Philox(9).randn((4, 6, 7))
    np.testing.assert_array_equal(first_noise(5, (4, 6, 7), 9, 0.0), a)
    np.testing.assert_allclose(first_noise(5, (4, 6, 7), 9, 1.0), b, atol=1e-5)
    half = slerp(0.5, a.astype(np.float64), b.astype(np.float64))

    def angle(x, y):
        norms = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
        return np.arccos((x * y).sum(axis=1) / norms)

    weight = 1 / (2 * np.cos(angle(a, b) / 2))
    np.testing.assert_allclose(half, weight[:, None] * (a + b), rtol=1e-5, atol=1e-6)


def test_nearly_equal_noises_are_mixed_the_other_way_round():
    a = Philox(5).randn((4, 6, 7))
    np.testing.assert_allclose(
        slerp(0.25, a, a * np.float32(1.01)), a * 0.25 + a * np.float32(1.01) * 0.75, rtol=1e-6
    )


@pytest.mark.parametrize("size", [(48, 64), (96, 40)])
def test_noise_of_another_size_stands_in_the_middle(size):
    h, w = size[0] // 8, size[1] // 8
    inner, y = Philox(5).randn((4, h, w)), first_noise(5, (4, 8, 8), resize_from=size)
    rows, columns = min(h, 8), min(w, 8)
    middle = y[:, (8 - rows) // 2 :, (8 - columns) // 2 :][:, :rows, :columns]
    np.testing.assert_array_equal(middle, inner[:, (h - rows) // 2 :, (w - columns) // 2 :][:, :rows, :columns])
    around = np.ones_like(y, bool)
    around[:, (8 - rows) // 2 :, (8 - columns) // 2 :][:, :rows, :columns] = False
    np.testing.assert_array_equal(y[around], Philox(5).randn((4, 8, 8))[around])


def test_full_strength_leaves_a_thousandth_out():
    """from_the_end takes min(strength, 0.999): seen from a thousand steps on."""
    steps = lambda n: np.arange(n, -1.0, -1)
    assert len(from_the_end(100, 1.0, steps)) == 101 and len(from_the_end(2000, 1.0, steps)) == 2000
