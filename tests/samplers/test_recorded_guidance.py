"""What ComfyUI's nodes and sd-dynamic-thresholding made of predictions: see tests/fixtures/record_guidance.py."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from refsd.samplers import guidance as g
from refsd.samplers import guidance_variants as variants
from refsd.samplers.mimic_threshold import mimic_deviation, mimic_threshold, scale_at
from refsd.samplers.noise import Philox

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "guidance.json").read_text())
SHAPE = (2, 2, 3, 4)
RNG = Philox(3)
X, COND, UNCOND, OTHER = (RNG.randn(SHAPE).astype(np.float64) for _ in range(4))
GUIDED = g.guide(COND, UNCOND, 1.5)


def comfyui_apg(again: bool):
    told = (0.3, 2.5, -0.5)
    first, average = g.projected_difference(COND, UNCOND, *told)
    if not again:
        return COND + 6 * first
    return 2 * COND + 6 * g.projected_difference(2 * COND, UNCOND, *told, average)[0]


def comfyui_skip_layer():
    """Its rescaling takes the standard deviations of the whole batch."""
    y = g.skip_layer(g.guide(COND, UNCOND, 6), COND, OTHER, 3)
    return g.rescale(y[None], COND[None], 0.7)[0]


THRESHOLDS = {
    "AD": functools.partial(mimic_threshold),
    "AD percentile": functools.partial(mimic_threshold, percentile=0.8),
    "AD whole": functools.partial(mimic_threshold, percentile=0.9, by_channel=False),
    "AD zero": functools.partial(mimic_threshold, percentile=0.9, from_zero=True),
    "AD phi": functools.partial(mimic_threshold, percentile=0.9, phi=0.6),
    "STD": mimic_deviation,
    "STD whole zero": functools.partial(mimic_deviation, by_channel=False, from_zero=True),
}
OURS = {
    "apg 0": lambda: comfyui_apg(False),
    "apg 1": lambda: comfyui_apg(True),
    "zero star": lambda: variants.zero_star_denoised(X, COND, UNCOND, 6),
    **{f"cfg norm {a}": functools.partial(variants.hold_lengths, GUIDED, COND, a) for a in (1.0, 0.7)},
    **{
        f"cfg norm before {a}": functools.partial(
            variants.match_lengths, g.guide(X - COND, X - UNCOND, 1.5), X - COND, a
        )
        for a in (1.0, 0.7)
    },
    "skip layer": comfyui_skip_layer,
    "perp neg": lambda: variants.perpendicular_negative(COND[:1], UNCOND[:1], OTHER[:1], 6, 0.8),
    "rescale": lambda: variants.rescale_in_v(X, 2.5, COND, UNCOND, 6, 0.7),
    **{f"mimic {name}": functools.partial(rule, COND, UNCOND, 7, 3) for name, rule in THRESHOLDS.items()},
}


@pytest.mark.parametrize("name", RECORD["answers"])
def test_guidance(name):
    y = OURS[name]().ravel()
    np.testing.assert_allclose(y, RECORD["answers"][name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("curve", RECORD["scales"])
def test_scale_by_step(curve):
    ours = [scale_at(7.0, 1.5, curve, step, 9) for step in range(9)]
    np.testing.assert_allclose(ours, RECORD["scales"][curve], rtol=1e-14)


def test_what_is_within_the_mimicked_range_is_left_alone():
    y = mimic_threshold(COND, UNCOND, 1.0, 9.0, percentile=0.5, by_channel=False)
    np.testing.assert_allclose(y, COND, atol=1e-13)
