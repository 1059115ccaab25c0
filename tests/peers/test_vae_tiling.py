"""Tiling against diffusers' enable_tiling, in float64; stable-diffusion.cpp's is in test_sdcpp_tiling.py."""

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, draw_weights, float64_throughout
from test_models_vae import QUANT, load, peer_vae, shapes_without

from refsd.models.vae import decode, encode
from refsd.models.vae.network import VAESize
from refsd.models.vae.tiling import tiled_diffusers
from refsd.module import Module
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

SIZE = VAESize(24, (24, 48, 48), 1, 16)

# The config's sample_size, tile_overlap_factor, (H, W) of the latent, rows and columns beyond, what it lacks.
CASES = {
    "2x2 tiles": (16, 0.25, (7, 6), (0, 0), QUANT),
    "tall": (16, 0.25, (11, 3), (1, 0), ()),
    "wide": (16, 0.25, (4, 13), (3, 0), QUANT),
    "a last tile of one": (16, 0.25, (7, 10), (0, 0), ()),
    "half": (32, 0.5, (11, 13), (2, 1), QUANT),
    "rounded down twice": (20, 0.25, (9, 7), (0, 1), ()),
    "no overlap": (16, 0.1, (6, 9), (0, 0), ()),
    "one tile": (32, 0.25, (8, 5), (0, 0), QUANT),
}


@pytest.mark.parametrize("name", CASES)
def test_both_ways(name):
    sample_size, overlap, (H, W), (rows, columns), without = CASES[name]
    weights = draw_weights(shapes_without(SIZE, without), seed=1)
    m = Module({name: stored(w) for name, w in weights.items()})
    x, z = draw((2, 3, 4 * H + rows, 4 * W + columns), 2), draw((2, 16, H, W), 3)
    with float64_throughout():
        peer = peer_vae(SIZE, 8, without, sample_size=sample_size)
        load(peer, weights)
        whole = peer.decode(torch.from_numpy(z)).sample.numpy()
        peer.enable_tiling()
        peer.tile_overlap_factor = overlap
        picture = peer.decode(torch.from_numpy(z)).sample
        posterior = peer.encode(torch.from_numpy(x)).latent_dist
    latent_size = peer.tile_latent_min_size
    ours = tiled_diffusers(lambda z: decode(m, z, 8), z, latent_size, sample_size, overlap)
    assert distance(ours, picture) <= 1e-12
    if name == "one tile":
        np.testing.assert_array_equal(picture.numpy(), whole)
    elif ours.shape == whole.shape:
        assert np.linalg.norm(ours - whole) > 1e-2 * np.linalg.norm(whole)

    moments = tiled_diffusers(lambda x: np.concatenate(encode(m, x, 8), 1), x, sample_size, latent_size, overlap)
    mean, logvar = np.split(moments, 2, axis=1)
    assert distance(mean, posterior.mean) <= 1e-12
    assert distance(np.clip(logvar, -30, 20), posterior.logvar) <= 1e-12
