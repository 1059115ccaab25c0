"""A size is read back from its own table; one tensor that is missing does not change it."""

import pytest
from sd15_shapes import sd15_shapes

from refsd.models.clip.network import CLIP_G, CLIP_H, CLIP_H_23, CLIP_L_PROJECTED, CLIPSize, clip_shapes, clip_size
from refsd.models.ideogram4.network import IDEOGRAM4, ideogram4_shapes, ideogram4_size
from refsd.models.unet.tensors import UNetSize, unet_shapes, unet_size
from refsd.models.vae.network import FLUX_VAE, VAESize, vae_shapes, vae_size
from refsd.networks.dimensions import count, read_size

READ = {"unet": unet_size, "vae": vae_size, "clip": clip_size}


@pytest.mark.parametrize(
    ("shapes", "read", "size"),
    [
        (unet_shapes, unet_size, UNetSize()),
        (unet_shapes, unet_size, UNetSize(32, (32, 64), (0,), 1, 24, 9, 5)),
        (unet_shapes, unet_size, UNetSize(48, (48, 144, 96), (1, 2), 3, 33)),
        (vae_shapes, vae_size, VAESize()),
        (vae_shapes, vae_size, VAESize(32, (32, 64, 64), 1, 8, 1)),
        (clip_shapes, clip_size, CLIPSize()),
        (vae_shapes, vae_size, FLUX_VAE),
        (vae_shapes, vae_size, VAESize(latent_channels=32)),
        (clip_shapes, clip_size, CLIPSize(64, 3, 100, 51, 7)),
        (clip_shapes, clip_size, CLIP_L_PROJECTED),
        (clip_shapes, clip_size, CLIP_H),
        (clip_shapes, clip_size, CLIP_H_23),
        (clip_shapes, clip_size, CLIP_G),
    ],
)
def test_read_back(shapes, read, size):
    assert read(shapes(size)) == size


@pytest.mark.parametrize("component", READ)
def test_one_missing_tensor_changes_nothing(component):
    shapes = sd15_shapes()[component]
    size = READ[component](shapes)
    for name in shapes:
        assert READ[component]({n: s for n, s in shapes.items() if n != name}) == size, name


@pytest.mark.parametrize("shape", [(), (0,), (0, 0, 0, 0), (2**60, 2**60), (1,) * 9])
@pytest.mark.parametrize("component", READ)
def test_odd_shapes_are_no_error(component, shape):
    assert READ[component](dict.fromkeys(sd15_shapes()[component], shape)) is not None


@pytest.mark.parametrize("half", ["encoder.", "decoder."])
@pytest.mark.parametrize("size", [FLUX_VAE, VAESize(24, (24, 72), 1, 6, 3, quant_convs=False)])
def test_half_an_autoencoder(half, size):
    assert vae_size({name: shape for name, shape in vae_shapes(size).items() if name.startswith(half)}) == size


@pytest.mark.parametrize("component", READ)
def test_nothing_is_sd15(component):
    assert READ[component]({}) == READ[component](sd15_shapes()[component])


def test_count():
    names = ["a.0.x", "a.2.x", "a.12", "a.100.x", "a.x", "a.-3.x", "a.\u0663.x", "b.50.x"]
    assert count(names, "a.", 7) == 13
    assert count(names, "c.", 7) == 7


@pytest.mark.parametrize(
    "gone", ["layers.0.feed_forward.w1.weight", "input_proj.weight", "layers.0.attention.norm_q.weight"]
)
def test_a_dimension_is_read_from_the_next_tensor_that_has_it(gone):
    size = IDEOGRAM4._replace(hidden=512, layers=2, mlp=384, head_dim=64)
    shapes = ideogram4_shapes(size)
    del shapes[gone]
    assert ideogram4_size(shapes) == size


def test_a_field_that_is_no_dimension_has_to_be_given():
    with pytest.raises(KeyError, match="layers"):
        read_size(IDEOGRAM4, ideogram4_shapes, ideogram4_shapes(IDEOGRAM4))
