"""Seamless pictures against diffusers whose convolutions are made circular, in float64.

Two ways of doing it: torch's padding_mode (A1111's and Easy Diffusion's, both axes), and one mode for each axis by
a patched _conv_forward (the scripts for one axis). Neither reaches the zeros that the autoencoder's encoder lays on
the right and below by hand; stable-diffusion.cpp wraps those too, and so does torch if its `pad` is asked to.
"""

import contextlib

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, draw_weights, float64_throughout
from test_models_unet import load as load_unet
from test_models_unet import peer_unet
from test_models_vae import QUANT, peer_vae, shapes_without
from test_models_vae import load as load_vae
from torch.nn.functional import pad

from refsd.circular import CircularAxes
from refsd.models.unet import unet
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.models.vae import decode, encode
from refsd.models.vae.network import VAESize
from refsd.module import Module
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

AXES = {"both": (True, True), "x": (True, False), "y": (False, True)}
UNET = UNetSize(32, (32, 64, 64), (1,), 1, 24)
VAE = VAESize(24, (24, 48, 48), 2, 16)


def by_padding_mode(model: torch.nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.padding_mode = "circular"


def by_axis(model: torch.nn.Module, x: bool, y: bool) -> None:
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer._conv_forward = _conv_forward(layer, x, y)


def _conv_forward(layer, x, y):
    left, right, top, bottom = layer._reversed_padding_repeated_twice

    def forward(image, weight, bias):
        image = pad(image, (left, right, 0, 0), mode="circular" if x else "constant")
        image = pad(image, (0, 0, top, bottom), mode="circular" if y else "constant")
        return torch.nn.functional.conv2d(image, weight, bias, layer.stride, 0, layer.dilation, layer.groups)

    return forward


@contextlib.contextmanager
def one_sided_too(monkeypatch, x: bool, y: bool):
    """Inside, (0, 1, 0, 1) of zeros wraps as well."""

    def wraps(image, sides, mode="constant", value=None):
        if tuple(sides) != (0, 1, 0, 1):
            return pad(image, sides, mode, value)
        image = pad(image, (0, 1, 0, 0), "circular" if x else "constant")
        return pad(image, (0, 0, 0, 1), "circular" if y else "constant")

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "pad", wraps)
        yield


def circular(model, axes) -> None:
    by_padding_mode(model) if axes == (True, True) else by_axis(model, *axes)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_unet(axes):
    weights = draw_weights(unet_shapes(UNET), seed=4)
    m = Module({name: stored(w) for name, w in weights.items()}, circular=CircularAxes(*axes))
    x, context, timesteps = draw((2, 4, 12, 20), 5), draw((2, 7, UNET.context_dim), 6), (999.0, 17.25)
    with float64_throughout():
        peer = peer_unet(UNET, 4, 32)
        load_unet(peer, weights)
        before = peer(torch.from_numpy(x), torch.tensor(timesteps), torch.from_numpy(context)).sample
        circular(peer, axes)
        want = peer(torch.from_numpy(x), torch.tensor(timesteps), torch.from_numpy(context)).sample
    assert distance(unet(m, x, np.array(timesteps), context, num_heads=4), want) <= 1e-12
    assert distance(before.numpy(), want) > 1e-3


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_vae(axes, one_sided, monkeypatch):
    weights = draw_weights(shapes_without(VAE, QUANT), seed=7)
    m = Module({name: stored(w) for name, w in weights.items()}, circular=CircularAxes(*axes, one_sided))
    x, z = draw((2, 3, 22, 17), 8), draw((2, 16, 3, 5), 9)
    with float64_throughout():
        peer = peer_vae(VAE, 8, QUANT)
        load_vae(peer, weights)
        circular(peer, axes)
        with one_sided_too(monkeypatch, *axes) if one_sided else contextlib.nullcontext():
            posterior = peer.encode(torch.from_numpy(x)).latent_dist
        want = peer.decode(torch.from_numpy(z)).sample
    assert distance(encode(m, x, num_groups=8)[0], posterior.mean) <= 1e-12
    assert distance(decode(m, z, num_groups=8), want) <= 1e-12
