"""Guidance against diffusers' guiders and pipelines' own lines, in float64."""

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from diffusers.guiders import (
    AdaptiveProjectedGuidance,
    ClassifierFreeGuidance,
    ClassifierFreeZeroStarGuidance,
    SkipLayerGuidance,
    TangentialClassifierFreeGuidance,
)
from diffusers.guiders.adaptive_projected_guidance import MomentumBuffer
from float64_peers import float64_throughout

from refsd.samplers import guidance as g
from refsd.samplers import guidance_variants as variants

pytestmark = pytest.mark.peer

RNG = np.random.default_rng(3)
COND, UNCOND, OTHER = RNG.standard_normal((3, 2, 4, 3, 5))


def asked(guider, *predictions: np.ndarray, step: int = 5) -> np.ndarray:
    guider._step, guider._num_inference_steps, guider._enabled = step, 20, True
    with float64_throughout():
        return guider.forward(*map(torch.from_numpy, predictions)).pred.numpy()


def close(mine, theirs):
    np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("phi", [0.0, 0.7])
def test_guidance(original, phi):
    """use_original_formulation is the paper's scale, and Z-Image's: one less."""
    guider = ClassifierFreeGuidance(5.0, guidance_rescale=phi, use_original_formulation=original)
    mine = g.guide(COND, UNCOND, 6.0 if original else 5.0)
    close(g.rescale(mine, COND, phi), asked(guider, COND, UNCOND))


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("threshold", [0.0, 3.0])
def test_adaptive_projected_guidance(original, eta, threshold):
    """Three steps, each with the average of those before."""
    guider = AdaptiveProjectedGuidance(
        5.0,
        adaptive_projected_guidance_momentum=-0.5,
        adaptive_projected_guidance_rescale=threshold,
        eta=eta,
        use_original_formulation=original,
    )
    guider.momentum_buffer, average = MomentumBuffer(-0.5), None
    for shift in (0.0, 0.3, -0.8):
        cond = COND + shift
        difference, average = g.projected_difference(cond, UNCOND, eta, threshold, -0.5, average)
        close((cond if original else UNCOND) + 5 * difference, asked(guider, cond, UNCOND))


def test_skip_layer_guidance():
    guider = SkipLayerGuidance(5.0, 2.8, skip_layer_guidance_layers=[1], skip_layer_guidance_stop=1.0)
    mine = g.skip_layer(g.guide(COND, UNCOND, 5.0), COND, OTHER, 2.8)
    close(mine, asked(guider, COND, UNCOND, OTHER))


def test_zero_star():
    guider = ClassifierFreeZeroStarGuidance(5.0, zero_init_steps=1)
    close(variants.zero_star(COND, UNCOND, 5.0), asked(guider, COND, UNCOND))


def test_tangential():
    guider = TangentialClassifierFreeGuidance(5.0)
    close(variants.tangential(COND, UNCOND, 5.0), asked(guider, COND, UNCOND))


def test_dynamic_threshold():
    scheduler = DDIMScheduler(thresholding=True, dynamic_thresholding_ratio=0.9, sample_max_value=2.5)
    with float64_throughout():
        theirs = scheduler._threshold_sample(torch.from_numpy(3 * COND)).numpy()
    close(g.dynamic_threshold(3 * COND, 0.9, 2.5), theirs)
