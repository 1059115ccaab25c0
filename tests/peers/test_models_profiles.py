"""The profiles torch-f16 and torch-bf16 err as torch itself does when it runs in that dtype."""

import numpy as np
import pytest
import tiny_models as tiny
import torch
from test_models_clip import load as load_clip
from test_models_clip import peer_clip
from test_models_unet import load as load_unet
from test_models_unet import peer_unet
from test_models_vae import load as load_vae
from test_models_vae import peer_vae

from refsd.components import forward
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, TORCH_BF16, TORCH_F16

pytestmark = pytest.mark.peer

# The profile's error over torch's, both against float64, both root mean squares over the tensor.
FACTOR = 1.3
DTYPES = {"f16": (TORCH_F16, torch.float16), "bf16": (TORCH_BF16, torch.bfloat16)}


def unet(weights, inputs, dtype):
    peer = peer_unet(tiny.UNET, 8, 32)
    load_unet(peer, weights)
    return peer.to(dtype)(inputs["x"], inputs["timesteps"], inputs["context"]).sample


def vae_encoder(weights, inputs, dtype):
    peer = peer_vae(tiny.VAE, 32)
    load_vae(peer, weights)
    return peer.to(dtype).encode(inputs["x"]).latent_dist.mean


def vae_decoder(weights, inputs, dtype):
    peer = peer_vae(tiny.VAE, 32)
    load_vae(peer, weights)
    return peer.to(dtype).decode(inputs["z"]).sample


def clip(weights, inputs, dtype):
    peer = peer_clip(tiny.CLIP, **tiny.PARAMS["clip"])
    load_clip(peer, weights)
    return peer.to(dtype)(inputs["input_ids"]).last_hidden_state


PEERS = {"clip": clip, "unet": unet, "vae-encoder": vae_encoder, "vae-decoder": vae_decoder}


def error(y, truth):
    return np.linalg.norm(np.asarray(y, np.float64) - truth) / np.linalg.norm(truth)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("component", PEERS)
def test_a_profile_errs_as_torch_does(component, dtype):
    numerics, torch_dtype = DTYPES[dtype]
    params = tiny.PARAMS.get(component)
    stored = tiny.weights(tiny.PARTS[component])
    inputs = tiny.inputs()[component]
    truth, ours = (
        next(iter(forward(component, Module(stored, Arithmetic(n)), inputs, params).values()))
        for n in (FLOAT64, numerics)
    )
    weights = {name: tensor.values() for name, tensor in stored.items()}
    given = {
        name: torch.from_numpy(x) if name in ("timesteps", "input_ids") else torch.from_numpy(x).to(torch_dtype)
        for name, x in inputs.items()
    }
    with torch.no_grad():
        theirs = PEERS[component](weights, given, torch_dtype).double().numpy()
    ratio = error(ours, truth) / error(theirs, truth)
    print(f"{component} {dtype}: {error(ours, truth):.2e} / {error(theirs, truth):.2e} = {ratio:.2f}")
    assert 1 / FACTOR <= ratio <= FACTOR
