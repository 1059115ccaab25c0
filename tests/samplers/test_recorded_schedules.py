"""ComfyUI's and Forge's schedules of rectified flows: see tests/fixtures/record_schedules.py."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from refsd.conventions import CARDS
from refsd.samplers.levels import SD_LEVELS, FlowLevels
from refsd.samplers.schedules import flow, sgm_uniform

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "schedules.json").read_text())
# Flux has ten thousand levels there, and is told sigma itself.
LEVELS = {"sd3": FlowLevels(RECORD["shift"]), "flux": FlowLevels(math.exp(RECORD["mu"]), 1.0, 10000)}


@pytest.mark.parametrize("name", RECORD["sigmas"])
def test_of_a_flow(name):
    engine, family, schedule, n = name.split()
    ours = CARDS[engine].sigmas(int(n), schedule, "euler", LEVELS[family])
    np.testing.assert_allclose(ours, RECORD["sigmas"][name], rtol=1e-12, atol=1e-15)


def test_one_name_two_schedules():
    """stable-diffusion.cpp's lowest level is shifted once, ComfyUI's twice: 5e-3 apart."""
    levels = LEVELS["sd3"]
    ours, theirs = (CARDS[engine].sigmas(7, "sgm_uniform", "euler", levels) for engine in ("sdcpp", "comfyui"))
    assert 3e-3 < np.abs(ours - theirs).max() < 7e-3
    np.testing.assert_array_equal(ours, sgm_uniform(7, levels))


@pytest.mark.parametrize("option", ["karras", "exponential", "beta"])
def test_one_step_of_diffusers(option):
    """Euler's options run between the ends of its spacing: one step of linspace is the lowest level."""
    card, low, high = CARDS["diffusers"], SD_LEVELS.sigmas[0], SD_LEVELS.sigmas[-1]
    for name, first in ((option, low), (f"trailing_{option}", high), (f"{option}_multistep", high)):
        np.testing.assert_allclose(card.sigmas(1, name, "euler", SD_LEVELS), [first, 0], rtol=1e-12)
    both = [card.sigmas(7, name, "euler", SD_LEVELS) for name in (option, f"{option}_multistep")]
    np.testing.assert_allclose(*both, rtol=1e-12)


def test_of_a_flow_by_name():
    """From diffusers: evenly to 0 from 0.999, then shifted; and what its cards have for a flow."""
    t = 0.999 * np.array([1, 2 / 3, 1 / 3, 0])
    levels = LEVELS["sd3"]
    np.testing.assert_allclose(flow.FLOW_SCHEDULES["flow_below_one"](3, levels), 3 * t / (1 + 2 * t), rtol=1e-14)
    card = CARDS["diffusers"]
    assert card.flow_schedule == "flow_linspace" and "flow_linspace" not in card.schedules
    ours = card.sigmas(3, "flow_linspace", "euler", levels)
    np.testing.assert_array_equal(ours, flow.flow_linspace(3, 3.0))
    assert "flow_linspace" in card.rules(levels) and "normal" in CARDS["forge"].rules(levels)
