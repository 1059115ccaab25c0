"""The size that a plan draws, where the sides asked for are no multiples of what the network takes."""

import numpy as np
import pytest
from PIL import Image
from small_pictures import call, pipeline

from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.conventions.sdcpp import PICTURES as SDCPP
from refsd.models.unet import upsample
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.pipelines import txt2img
from refsd.pipelines.picture_size import size_multiple
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]

# These autoencoders halve once, FLUX.2's latents are packed besides; sd-cli, diffusers (None: it refuses others).
MULTIPLES = {
    "sd15": (16, 2, None),
    "sdxl": (16, 2, None),
    "sd3": (2, 4, None),
    "flux-dev": (2, 4, "down"),
    "chroma": (2, 4, "down"),
    "zimage": (2, 4, None),
    "flux2-klein": (4, 4, "down"),
    "flux3": (4, 4, None),
    "qwen-image21": (4, 8, "down"),
    "chroma-radiance": (4, 4, None),
}


@pytest.mark.parametrize("family", MULTIPLES)
def test_what_each_engine_draws(folder, family):
    pipe = pipeline(folder, family)
    up, exact, otherwise = MULTIPLES[family]
    assert (size_multiple(pipe, SDCPP), size_multiple(pipe, DIFFUSERS)) == (up, exact)
    drawn = resolve(pipe, Settings("", width=3 * up - 1, height=2 * up))
    assert (drawn.width, drawn.height) == (3 * up, 2 * up)
    fits = Settings("", width=5 * exact, height=7 * exact, like="diffusers")
    exactly = resolve(pipe, fits)
    assert (exactly.width, exactly.height, exactly.notices) == (fits.width, fits.height, ())
    odd = fits._replace(width=5 * exact + 1)
    if otherwise is None:
        with pytest.raises(BadInput, match=f"{odd.width}x{odd.height}: diffusers draws .* in multiples of {exact}"):
            resolve(pipe, odd)
    else:
        assert (resolve(pipe, odd).width, resolve(pipe, odd).height) == (fits.width, fits.height)


def test_diffusers_draws_nothing_of_no_size(folder):
    pipe = pipeline(folder, "flux-dev")
    with pytest.raises(BadInput, match=r"3x8: .* 4x8 is the next larger size"):
        resolve(pipe, Settings("", width=3, height=8, like="diffusers"))


@pytest.mark.parametrize("family", ["sd3", "flux-dev", "chroma", "zimage"])
def test_the_last_patches_are_filled_with_zeros_and_cut_off(folder, family):
    """As stable-diffusion.cpp does in the network: 3 x 5 latents are 4 x 6 to it."""
    pipe = pipeline(folder, family)
    plan = resolve(pipe, Settings("a cat", "", 10, 6, 1, 1.0))
    cond = txt2img.encode(pipe, plan).cond
    heard = {}
    latent = txt2img.sample(
        pipe,
        plan,
        txt2img.Conditioning(cond, None),
        42,
        listener=lambda name, x: heard.update({name: np.array(x)}),
    )
    assert latent.shape[2:] == (3, 5)
    x = heard["calls.0.x"]
    inputs = {"timesteps": heard["calls.0.timesteps"], "context": cond.context}
    inputs |= {} if cond.y is None else {"y": cond.y}
    inputs |= {} if cond.mask is None else {"context_mask": cond.mask}
    inputs |= {"guidance": np.array([3.5])} if family == "flux-dev" else {}
    padded = np.zeros((1, x.shape[1], 4, 6))
    padded[:, :, :3, :5] = x
    out = pipe.denoiser(inputs | {"x": padded}, "by hand")["out"]
    np.testing.assert_array_equal(heard["calls.0.cond"], out[:, :, :3, :5])
    assert txt2img.decode(pipe, latent).shape == (1, 3, 6, 10)


@pytest.mark.parametrize(("like", "size"), [("sdcpp", (128, 128)), ("diffusers", (72, 104))])
def test_72x104(tiny, tmp_path, like, size):
    result = call(
        *("-m", tiny, "-p", "a cat", "-o", tmp_path / "cat.png", "-W", 72, "-H", 104, "--steps", 1),
        *("--cfg-scale", 1, "--like", like, "--sampler", "euler"),
    )
    with Image.open(tmp_path / "cat.png") as png:
        assert png.size == size and f"Size: {size[0]}x{size[1]}" in png.text["parameters"]
    assert ("72x104 goes up to 128x128: multiples of 64" in result.stderr) == (like == "sdcpp")


def test_a_size_that_diffusers_refuses(tiny, tmp_path):
    said = r"70x104: diffusers draws Stable Diffusion 1.x in multiples of 8 only: 72x104 is the next larger size"
    with pytest.raises(BadInput, match=said):
        call("-m", tiny, "-p", "a cat", "-o", tmp_path / "cat.png", "-W", 70, "-H", 104, "--like", "diffusers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [(3, 5), (4, 6), (3, 6)])
def test_the_way_up_to_an_odd_size_is_nearest_interpolation(size):
    """y[i] = x[floor(i n / size)], then the convolution."""
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((2, 3, 2, 3)), rng.standard_normal((3, 3, 1, 1))
    kernel = np.zeros((3, 3, 3, 3))
    kernel[:, :, 1:2, 1:2] = weight
    m = Module({"conv.weight": stored(kernel), "conv.bias": stored(np.zeros(3))})
    rows, columns = (np.arange(n) * of // n for n, of in zip(size, x.shape[2:], strict=True))
    expected = np.einsum("kc,nchw->nkhw", weight[:, :, 0, 0], x[:, :, rows[:, None], columns])
    np.testing.assert_allclose(upsample(m, x, size), expected, rtol=1e-12, atol=1e-14)
