"""Where Forge's own samplers ended, in float64, and its tables: see tests/fixtures/record_forge.py."""

import json
from pathlib import Path

import numpy as np
import pytest

from refsd.conventions import CARDS
from refsd.samplers import CFG_PP_SAMPLERS, SAMPLERS
from refsd.samplers.levels import SD_LEVELS, DiscreteLevels
from refsd.samplers.noise import Philox, independent
from refsd.samplers.parameterization import denoiser
from refsd.samplers.restart import Segment, path, usual_segments
from refsd.samplers.schedules import karras, tables

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "forge.json").read_text())
SHAPE = (2, 1, 2, 3)
ENDS = DiscreteLevels(np.array([0.03, 14.6]))
TABLES = {
    "align_your_steps sd1": tables.AYS_SD1,
    "align_your_steps sdxl": tables.AYS_SDXL,
    "align_your_steps_11 sd1": tables.AYS_SD1,
    "align_your_steps_11 sdxl": tables.AYS_SDXL,
    "align_your_steps_32 sd1": tables.AYS_SD1_32,
    "align_your_steps_32 sdxl": tables.AYS_SDXL_32,
    "align_your_steps_GITS sd1": tables.AYS_GITS_SD1,
    "align_your_steps_GITS sdxl": tables.AYS_GITS_SDXL,
}


def denoised(x, sigma):
    return np.tanh(x + 0.3) / (1 + sigma) + 0.05 * x


def close(y, expected, bound=1e-12):
    assert np.linalg.norm(y.ravel() - expected) <= bound * np.linalg.norm(expected)


def start(sigma=1.0):
    return Philox(42).randn(SHAPE).astype(np.float64) * sigma


@pytest.mark.parametrize("name", ["restart 10", "restart 20", "restart 40", "heunpp2", "deis_tab"])
def test_ends(name):
    sampler, _, steps = name.partition(" ")
    sigmas = karras(int(steps or 10), ENDS)
    y = SAMPLERS[sampler](denoised, start(sigmas[0]), sigmas, independent(Philox(7), SHAPE))
    close(y, RECORD["ends"][name])


def network(x, t):
    return 0.9 * np.tanh(x + 0.3) + 0.1 * x * (1 + t / 999)


@pytest.mark.parametrize("name", ["plms", "ddim", "ddim_cfgpp"])
def test_samplers_of_timesteps(name):
    """They run over t = 901, 801, ... and end at the level of t = 1; their latents are of unit variance."""
    sigmas = SD_LEVELS.sigmas[np.arange(901, 0, -100)]
    scale = np.sqrt(sigmas**2 + 1)
    model = denoiser(network, SD_LEVELS)

    def guided(x, sigma):
        eps = (x - model(x, sigma)) / sigma
        return model(x, sigma), x - sigma * (0.7 * eps - 0.1)

    noise, x = independent(Philox(7), SHAPE), start() * scale[0]
    if name == "ddim_cfgpp":
        y = CFG_PP_SAMPLERS["euler_a_cfg_pp"](guided, x, sigmas, noise, eta=0.6)
    elif name == "ddim":
        y = SAMPLERS["euler_a"](model, x, sigmas, noise, eta=0.6)
    else:
        y = SAMPLERS["plms"](model, x, sigmas)
    close(y / scale[-1], RECORD["ends"][name])


@pytest.mark.parametrize("name", RECORD["schedules"])
def test_tables(name):
    table, steps = name.rsplit(" ", 1)
    ours = tables.align_your_steps_appended(int(steps), TABLES[table])
    np.testing.assert_allclose(ours, RECORD["schedules"][name], rtol=1e-12)
    if table.endswith("sd1"):
        card = CARDS["forge"].sigmas(int(steps), table.split()[0], "euler", SD_LEVELS)
        np.testing.assert_array_equal(card, ours)


def test_restart_by_hand():
    """Below 20 steps Heun's; a segment is walked again from the sigma next to its top."""
    sigmas = np.array([8.0, 4.0, 2.0, 1.0, 0.5, 0.0])
    assert usual_segments(sigmas)[1] == []
    steps = path(sigmas, [Segment(0.9, 4.2, 3, 2)])
    middle = ((4 ** (1 / 7) + 1) / 2) ** 7
    down = [(4, middle), (middle, 1)]
    np.testing.assert_allclose(steps, [(8, 4), (4, 2), (2, 1), *down, *down, (1, 0.5), (0.5, 0)], rtol=1e-14)
    x = np.linspace(-3, 4, 5)
    y = SAMPLERS["restart"](denoised, x, sigmas, None)
    np.testing.assert_allclose(y, SAMPLERS["heun"](denoised, x, sigmas), rtol=1e-14)
    # A segment may be a single step.
    np.testing.assert_allclose(path(sigmas, [Segment(1.0, 2.0, 2, 1)])[2:5], [(2, 1), (2, 1), (1, 0.5)], rtol=1e-14)
    assert path(sigmas, [Segment(2.0, 1.0, 2, 1)]) == path(sigmas, [])
    for n, calls in ((19, 19), (20, 11 + 9), (35, 26 + 9), (36, 18 + 2 * 9), (39, 21 + 2 * 9), (40, 20 + 2 * 10)):
        assert len(path(*usual_segments(karras(n, ENDS)))) == calls
