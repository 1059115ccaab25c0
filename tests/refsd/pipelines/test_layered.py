"""Qwen-Image-Layered: the size of the layers, their latents, one step by hand, the files, what is refused."""

import json
import math

import numpy as np
import pytest
from PIL import Image
from small_pictures import call, files, pipeline

from refsd.families import editing
from refsd.families.editing import resized
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]

RNG = np.random.default_rng(5)
WHOLE = RNG.integers(0, 256, (1, 4, 24, 40)) / 255
IMAGES = ConditioningImages(reference=WHOLE)
SETTINGS = Settings("a cat", "ugly", steps=1, cfg_scale=3.0, like="diffusers", qwen_image_layers=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(editing, "LAYERED_AREA", 32 * 64)


@pytest.fixture
def layered(tmp_path):
    return pipeline(tmp_path, "qwen-image-layered")


def test_one_step_by_hand(layered):
    """The whole picture and two layers from noise, beside the latent of the picture; guidance is not rescaled."""
    plan = resolve(layered, SETTINGS, IMAGES)
    assert (plan.height, plan.width) == (32, 64) and plan.latent_shape == (1, 3, 16, 4, 8)
    start = initial_latent(layered, plan, 1)
    (name, condition), *others = start.constants.items()
    want = layered.autoencoder.encode(resized(WHOLE, (32, 64), "LANCZOS") * 2 - 1)
    np.testing.assert_array_equal(condition, want)
    assert (name, others) == ("condition", []) and start.noise.shape == plan.latent_shape
    both = txt2img.encode(layered, plan)
    velocity = [
        layered.denoiser(
            {"x": start.noise, "timesteps": np.ones(1), "context": text.context, "condition": condition}, "by hand"
        )["out"]
        for text in both
    ]
    latent = txt2img.sample(layered, plan, both, 1, start=start)
    cond, uncond = velocity
    np.testing.assert_allclose(latent, start.noise - (uncond + 3 * (cond - uncond)), rtol=1e-9, atol=1e-11)
    layers = txt2img.decode(layered, latent)
    assert layers.shape == (2, 4, 32, 64)
    for k, layer in enumerate(layers, 1):
        np.testing.assert_array_equal(layer, layered.autoencoder.decode(latent[:, k])[0])


def test_layers_and_size(layered):
    """diffusers' four; a size of the user's replaces the picture's."""
    plan = resolve(layered, SETTINGS._replace(qwen_image_layers=None, width=48, height=16), IMAGES)
    assert plan.qwen_image_layers == 4 and plan.latent_shape == (1, 5, 16, 2, 6)
    assert initial_latent(layered, plan, 1).constants["condition"].shape == (1, 16, 2, 6)


def test_levels_of_eight_tokens(layered):
    """t / (t + (1 - t) e^-mu) at 1, 2/3 and 1/3, its distance from 1 stretched to end at 0.02."""
    sigmas = resolve(layered, SETTINGS._replace(steps=3), IMAGES).sigmas
    shift = math.exp(math.sqrt(8 / 256))
    one, two = (1 - t / (t + (1 - t) / shift) for t in (2 / 3, 1 / 3))
    np.testing.assert_allclose(sigmas, [1, 1 - 0.98 * one / two, 0.02, 0], rtol=1e-12)


def test_a_file_a_layer(layered, tmp_path):
    """Two pictures of two layers; the preview shows the whole picture."""
    parts = [word for pair in files(tmp_path / "qwen-image-layered", "qwen-image-layered").items() for word in pair]
    pixels = (WHOLE[0] * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0)
    Image.fromarray(pixels).save(tmp_path / "in.png")
    given = ("-r", tmp_path / "in.png", "-p", "a cat", "--steps", 1, "--like", "diffusers", "-b", 2)
    given += ("--qwen-image-layers", 2, "--preview", "vae", "--preview-path", tmp_path / "preview.png")
    result = call(*parts, *given, "-o", tmp_path / "cat.png", "--json")
    names = [tmp_path / f"cat_{n}.png" for n in range(4)]
    told = json.loads(result.stdout)
    assert told["pictures"] == [{"path": str(path), "seed": 42 + n // 2} for n, path in enumerate(names)]
    assert told["settings"]["qwen_image_layers"] == 2
    drawn = []
    for path in [*names, tmp_path / "preview.png"]:
        with Image.open(path) as image:
            assert image.size == (64, 32) and image.mode == "RGBA"
            drawn.append(np.asarray(image).tobytes())
    assert len({*drawn}) == 5
    with Image.open(names[3]) as image:
        assert isinstance(image, Image.Image) and "Layers: 2" in image.info["parameters"]


@pytest.mark.parametrize(
    ("changes", "images", "message"),
    [
        ({"like": "sdcpp"}, IMAGES, r"--like sdcpp: .* diffusers' rules of Qwen-Image-Layered alone"),
        ({"prompt": ""}, IMAGES, "--prompt: .* describe the picture"),
        ({}, ConditioningImages(), "takes a picture apart: give it with --ref-image"),
        ({}, IMAGES._replace(init=WHOLE[:, :3]), r"--init-img: the picture has 40x24 pixels"),
        ({"width": 32, "height": 32}, IMAGES._replace(init=np.zeros((1, 3, 32, 32))), "and no --init-img"),
        ({}, IMAGES._replace(more_references=(WHOLE,)), "--ref-image: 2 pictures; .* takes 1 here"),
        ({"qwen_image_layers": 0}, IMAGES, "--qwen-image-layers 0: expected 1 to 100"),
    ],
)
def test_refusals(layered, changes, images, message):
    with pytest.raises(BadInput, match=message):
        resolve(layered, SETTINGS._replace(**changes), images)


def test_only_layered_draws_layers(tmp_path):
    flux = pipeline(tmp_path, "flux-dev")
    with pytest.raises(BadInput, match=r"--qwen-image-layers: .* draws one picture; leave it out"):
        resolve(flux, Settings("a cat", width=16, height=16, qwen_image_layers=2))
