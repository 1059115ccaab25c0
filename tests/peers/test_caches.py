"""Caches against diffusers' hooks, in float64: the output of every call of a run, with two conditions in turn."""

import numpy as np
import pytest
import torch
from diffusers import FirstBlockCacheConfig, TaylorSeerCacheConfig
from diffusers.hooks import MagCacheConfig
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from float64_peers import distance, draw, float64_throughout, redraw
from test_models_flux_whole import image_ids, packed, peer_flux
from test_models_flux_whole import weights_of as flux_weights
from test_models_qwen_image import answer, peer_qwen_image
from test_models_qwen_image import weights_of as qwen_weights

from refsd.caches import CacheSettings, read_cache
from refsd.models.flux.network import flux_keymap
from refsd.module import Module
from refsd.pipelines.cached_network import CachedNetwork
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.samplers.levels import FlowLevels

pytestmark = pytest.mark.peer

STEPS, AXES, H, W = 11, (4, 6, 6), 6, 10
SIGMAS = np.linspace(1, 0, STEPS + 1)
RATIOS = (1.0, 1.2, 1.03, 1.01, 0.98, 1.02, 0.99, 0.9)
CACHES = {
    # The inputs move by turns little and much, so that some steps are reused and some are not.
    "first-block": ("threshold=0.2", FirstBlockCacheConfig(threshold=0.2)),
    "taylorseer": (
        "interval=3,before=2,after=9,order=2",
        TaylorSeerCacheConfig(
            cache_interval=3,
            disable_cache_before_step=2,
            disable_cache_after_step=9,
            max_order=2,
            taylor_factors_dtype=torch.float64,
            use_lite_mode=True,
        ),
    ),
    "magcache": (
        "threshold=0.06,most=2,retention=0.3,ratios=" + "/".join(map(str, RATIOS)),
        MagCacheConfig(
            threshold=0.06, max_skip_steps=2, retention_ratio=0.3, num_inference_steps=STEPS, mag_ratios=[*RATIOS]
        ),
    ),
}


def inputs(channels):
    """A latent for each step. -> [STEPS, 2, C, H, W]"""
    start, way, far = (draw((2, channels, H, W), seed) for seed in (1, 2, 3))
    return [start + 0.03 * s * way + (0.9 * far if s in (3, 4, 8) else 0) for s in range(STEPS)]


def flux_pair():
    y, guidance = draw((2, 13), 4), np.array([3.5, 1.25])
    peer = peer_flux(2, AXES, True)
    redraw(peer, 5)

    def theirs(x, t, context):
        told = torch.from_numpy(context), torch.from_numpy(y), torch.from_numpy(t), image_ids(H, W)
        out = peer(packed(x), *told, torch.zeros(context.shape[1], 3), torch.from_numpy(guidance)).sample
        return FluxPipeline._unpack_latents(out, 8 * H, 8 * W, 8)

    m = Module(flux_weights(peer, flux_keymap(2, 3)))
    more = {"y": y, "guidance": guidance}
    return peer, theirs, LoadedComponent("flux", m, {"axes_dim": [*AXES]}), more, 4, 11


def qwen_pair():
    peer = peer_qwen_image(2, AXES, layers=3)
    redraw(peer, 6)
    theirs = lambda x, t, context: answer(peer, x, t, context)
    return (
        peer,
        theirs,
        LoadedComponent("qwen-image", Module(qwen_weights(peer)), {"axes_dim": [*AXES]}),
        {},
        16,
        40,
    )


@pytest.mark.parametrize("pair", [flux_pair, qwen_pair])
@pytest.mark.parametrize("name", CACHES)
def test_every_call_of_a_run(name, pair):
    options, config = CACHES[name]
    settings: CacheSettings = read_cache("--cache", name, options)
    with float64_throughout():
        peer, theirs, network, more, channels, width = pair()
        peer.enable_cache(config)
        contexts = {"cond": draw((2, 7, width), 7), "uncond": draw((2, 3, width), 8)}
        cached = CachedNetwork(network, settings, SIGMAS, FlowLevels())
        reused = {which: [] for which in contexts}
        for step, x in enumerate(inputs(channels)):
            t = np.array([0.75, 0.5]) - 1e-4 * step  # the embedding of the time moves fast, and with it the blocks
            for which, context in contexts.items():
                with peer.cache_context(which):
                    want = theirs(x, t, context)
                tensors = {"x": x, "timesteps": t, "context": context, **more}
                got = cached.output(which, step, x, lambda tensors=tensors: network(tensors, "here")["out"])
                reused[which] += [step] if cached.reused else []
                assert distance(got, want) <= 1e-12, (step, which)
    for steps in reused.values():
        assert 3 <= len(steps) <= STEPS - 3, reused
    assert network.module.taps is None
