"""Qwen-Image 2.1's autoencoder against diffusers, in float64: encoding, decoding and every block."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLQwenImage21
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.vae_qwen_image21 import decode, encode
from refsd.models.vae_qwen_image21.network import (
    LATENTS_MEAN,
    LATENTS_STD,
    QwenImage21VAESize,
    qwen_image21_vae_shapes,
    qwen_image21_vae_size,
)
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, and (H, W) of the latent.
CONFIGS = {
    "real depth": (
        QwenImage21VAESize(4, (4, 8, 16, 32, 32), (6, 12, 24, 48, 48), 2, (False, True, True, True), 5),
        (2, 3),
    ),
    "three levels": (QwenImage21VAESize(6, (6, 12, 12), (4, 8, 8), 1, (True, False), 3, 3), (3, 2)),
    "three residual blocks": (QwenImage21VAESize(10, (10, 10), (6, 6), 3, (True,), 2), (1, 4)),
}


def peer_vae(size: QwenImage21VAESize):
    peer = AutoencoderKLQwenImage21(
        base_dim=size.channels,
        decoder_base_dim=size.decoder[0],
        z_dim=size.latent_channels,
        dim_mult=[width // size.channels for width in size.widths],
        num_res_blocks=size.res_blocks,
        temperal_downsample=list(size.halves),
        in_channels=size.image_channels,
        out_channels=size.image_channels,
    )
    return peer.eval()


def load(peer, weights):
    peer.load_state_dict({name: torch.from_numpy(w.values().astype(np.float64)) for name, w in weights.items()})


def answers(peer, x, z, mean, std):
    """As the pipeline scales latents. diffusers clips the picture, so the decoder is asked for it before that."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (mean, std))
    posterior = peer.encode(torch.from_numpy(x)[:, :, None]).latent_dist
    pictures = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "clamp", lambda y, min, max: pictures.append(y) or y)
        peer.decode(torch.from_numpy(z)[:, :, None] / (1 / std) + mean)
    latent, deviation = (posterior.mean - mean) * (1 / std), posterior.std / std
    return latent[:, :, 0], deviation[:, :, 0], pictures[-1][:, :, 0]


@pytest.mark.parametrize("name", CONFIGS)
def test_encode_decode_and_every_block(name):
    size, (H, W) = CONFIGS[name]
    factor = 2 ** (len(size.widths) - 1)
    mean, std = draw((size.latent_channels,), 5), np.exp(draw((size.latent_channels,), 6))
    x = draw((2, size.image_channels, H * factor, W * factor), 2)
    z = draw((2, size.latent_channels, H, W), 3)
    with float64_throughout():
        peer = peer_vae(size)
        redraw(peer, 4)
        with outputs_of(peer) as theirs:
            latent, deviation, want = answers(peer, x, z, mean, std)
    weights = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    assert {name: tensor.shape for name, tensor in weights.items()} == qwen_image21_vae_shapes(size)
    assert qwen_image21_vae_size(qwen_image21_vae_shapes(size)) == size
    m = Module(weights, taps=Taps())
    got, logvar = encode(m, x, mean, std)
    assert distance(got, latent) <= 1e-12
    assert distance(np.exp(logvar / 2), deviation) <= 1e-12
    assert distance(decode(m, z, mean, std), want) <= 1e-12
    blocks = [name for name in m.taps if name.endswith((".mid_block", ".attentions.0")) or "_blocks." in name]
    compared = [name for name in blocks if name in theirs and theirs[name].ndim == 5]
    assert {"encoder.mid_block", "decoder.up_blocks.0", "encoder.down_blocks.0.resnets.0"} <= set(compared)
    for block in compared:
        assert distance(m.taps[block], theirs[block][:, :, 0]) <= 1e-12, block


def test_the_real_one():
    with torch.device("meta"):
        peer = AutoencoderKLQwenImage21()
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    assert shapes == qwen_image21_vae_shapes(QwenImage21VAESize())
    assert tuple(peer.config.latents_mean) == LATENTS_MEAN and tuple(peer.config.latents_std) == LATENTS_STD
