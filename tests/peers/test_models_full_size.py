"""Stable Diffusion 1.5 at its full size, from a file, against diffusers and transformers in float64."""

import gc

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, float64_throughout
from test_models_clip import load as load_clip
from test_models_clip import peer_clip
from test_models_unet import load as load_unet
from test_models_unet import peer_unet
from test_models_vae import load as load_vae
from test_models_vae import peer_vae

from refsd.components import forward, load
from refsd.golden.case import ModelRecipe
from refsd.models.clip.network import CLIPSize
from refsd.models.unet.tensors import UNetSize
from refsd.models.vae.network import VAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint
from refsd.weights.recipes import make

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("sd15") / "sd15-f16.safetensors"
    yield open_checkpoint(make(ModelRecipe("sd15", "f16"), path))
    path.unlink()


def arrays(checkpoint, part):
    """The weights as the file stores them; the peer widens them."""
    return {name: np.array(tensor.values()) for name, tensor in checkpoint.components[part].weights.items()}


def answer(checkpoint, component, inputs):
    gc.collect()
    m, params = load(checkpoint, component, Arithmetic(FLOAT64))
    return forward(component, m, inputs, params)


def test_unet(checkpoint):
    x, context = draw((2, 4, 16, 24), 1), draw((2, 77, 768), 2)
    timesteps = np.array([999.0, 17.25])
    peer = peer_unet(UNetSize(), 8, 32).half()
    load_unet(peer, arrays(checkpoint, "unet"))
    with float64_throughout():
        want = peer.double()(torch.from_numpy(x), torch.from_numpy(timesteps), torch.from_numpy(context)).sample
    del peer
    got = answer(checkpoint, "unet", {"x": x, "timesteps": timesteps, "context": context})["out"]
    print(f"UNet: {distance(got, want):.2e}")
    assert distance(got, want) <= 1e-12


def test_vae(checkpoint):
    picture, z = np.clip(draw((2, 3, 64, 96), 3), -1, 1), draw((2, 4, 8, 12), 4)
    peer = peer_vae(VAESize(), 32).half()
    load_vae(peer, arrays(checkpoint, "vae"))
    with float64_throughout():
        peer.double()
        posterior = peer.encode(torch.from_numpy(picture)).latent_dist
        want = peer.decode(torch.from_numpy(z)).sample
    moments = answer(checkpoint, "vae-encoder", {"x": picture})
    out = answer(checkpoint, "vae-decoder", {"z": z})["out"]
    print(f"mean: {distance(moments['mean'], posterior.mean):.2e}, picture: {distance(out, want):.2e}")
    assert distance(moments["mean"], posterior.mean) <= 1e-12
    assert distance(np.clip(moments["logvar"], -30, 20), posterior.logvar) <= 1e-12
    assert distance(out, want) <= 1e-12


def test_clip(checkpoint):
    ids = np.random.default_rng(5).integers(0, 49406, (2, 77))
    ids[:, 0], ids[0, 40:], ids[1, -1] = 49406, 49407, 49407
    peer = peer_clip(CLIPSize(), 12, 49407).half()
    load_clip(peer, arrays(checkpoint, "clip"))
    with float64_throughout():
        want = peer.double()(torch.from_numpy(ids))
    got = answer(checkpoint, "clip", {"input_ids": ids})
    print(f"hidden: {distance(got['last_hidden_state'], want.last_hidden_state):.2e}")
    assert distance(got["last_hidden_state"], want.last_hidden_state) <= 1e-12
    assert distance(got["pooled"], want.pooler_output) <= 1e-12
