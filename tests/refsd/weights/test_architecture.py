"""Counted against the published files: 859520964 + 83653863 + 123060480 parameters."""

import math

import pytest
from sd15_shapes import sd15_shapes

from refsd.models.clip.network import CLIPSize, clip_shapes
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.models.vae.network import VAESize, vae_shapes


@pytest.mark.parametrize(
    ("component", "tensors", "parameters"),
    [("unet", 686, 859_520_964), ("vae", 248, 83_653_863), ("clip", 196, 123_060_480)],
)
def test_the_published_counts(component, tensors, parameters):
    shapes = sd15_shapes()[component]
    assert len(shapes) == tensors
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters


def test_some_published_shapes():
    unet, vae, clip = sd15_shapes().values()
    assert unet["input_blocks.4.0.skip_connection.weight"] == (640, 320, 1, 1)
    assert unet["output_blocks.8.2.conv.weight"] == (640, 640, 3, 3)
    assert unet["output_blocks.2.1.conv.weight"] == (1280, 1280, 3, 3)
    assert unet["output_blocks.11.1.transformer_blocks.0.attn2.to_k.weight"] == (320, 768)
    assert vae["decoder.up.0.block.0.nin_shortcut.weight"] == (128, 256, 1, 1)
    assert vae["encoder.mid.attn_1.q.weight"] == (512, 512, 1, 1)
    assert clip["text_model.encoder.layers.11.mlp.fc1.weight"] == (3072, 768)


def test_widths_scale():
    unet = unet_shapes(UNetSize(32, (32, 64, 128, 128), context_dim=16, in_channels=9))
    assert unet["input_blocks.0.0.weight"] == (32, 9, 3, 3)
    assert unet["middle_block.1.transformer_blocks.0.attn2.to_v.weight"] == (128, 16)
    assert vae_shapes(VAESize(32, (32, 64, 128, 128), latent_channels=16))["quant_conv.weight"] == (32, 32, 1, 1)
    assert len(clip_shapes(CLIPSize(layers=2))) == 2 * 16 + 4
