"""Pictures to edit with Qwen-Image 2.1: their sizes, their places in the prompt, alpha, the command line."""

import numpy as np
import pytest
import small_pictures
from PIL import Image
from small_pictures import VOCAB, call, files, pipeline

from refsd.families import editing
from refsd.families.editing import QWEN_IMAGE_21, on_white, resized
from refsd.models.qwen3_vision.network import Qwen3VisionSize
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages, read_image
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]

TOWER = {"qwen3_vision": Qwen3VisionSize(24, 5, 12, 40, 4, 9, 2)}
RNG = np.random.default_rng(5)
ONE, OTHER = (RNG.integers(0, 256, (1, 3, *size)) / 255 for size in ((24, 40), (33, 20)))
CLEAR = np.concatenate([ONE, RNG.integers(0, 256, (1, 1, 24, 40)) / 255], axis=1)
SETTINGS = Settings("a cat", "ugly", 32, 16, steps=1, like="diffusers")
BOTH = ConditioningImages(reference=ONE, more_references=(OTHER,))
PAD = VOCAB - 3


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A letter a token, and one for each place of a picture."""
    monkeypatch.setattr(editing, "LATENT_AREA", 32 * 64)
    monkeypatch.setattr(editing, "LEAST_3", 16 * 16)
    monkeypatch.setattr(small_pictures.Letters, "id_of", lambda self, token: PAD, raising=False)
    plain = small_pictures.Letters.encode

    def encode(self, text):
        words = [plain(self, part) for part in text.split("<|image_pad|>")]
        return [*words[0], *(token for part in words[1:] for token in (PAD, *part))]

    monkeypatch.setattr(small_pictures.Letters, "encode", encode)


@pytest.fixture
def qwen21(tmp_path):
    return pipeline(tmp_path, "qwen-image21", **TOWER)


def test_text_before_each_picture(qwen21, monkeypatch):
    """The form of the template that diffusers' pipeline has: pictures are numbered from 1, with a space between."""
    seen = []
    monkeypatch.setattr(small_pictures.Letters, "encode", lambda self, text: seen.append(text) or [1])
    with pytest.raises(BadInput, match="the prompt holds"):
        txt2img.encode(qwen21, resolve(qwen21, SETTINGS, BOTH))
    start = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n<|im_start|>user\n"
    one, other = (f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>" for n in (4 * 8, 8 * 4))
    assert seen[0] == f"{start}<image1>{one} <image2>{other}a cat<|im_end|>\n<|im_start|>assistant\n"


def test_places_of_the_pictures(qwen21):
    """The denoiser has as many latents there as four for each of the vision tower's tokens."""
    plan = resolve(qwen21, SETTINGS._replace(cfg_scale=2.0), BOTH)
    cond, uncond = txt2img.encode(qwen21, plan)
    system = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
    first = len(system + "<|im_start|>user\n<image1><|vision_start|>") - 14
    second = first + 32 + len("<|vision_end|> <image2><|vision_start|>")
    assert cond.places == uncond.places == (first, second)
    latents = initial_latent(qwen21, plan, 0).constants
    assert [z.shape[2:] for z in latents.values()] == [(8, 16), (16, 8)]
    assert not txt2img.encode(qwen21, resolve(qwen21, SETTINGS)).cond.places


def test_deepstack_reaches_the_text_encoder(qwen21, monkeypatch):
    cond = txt2img.encode(qwen21, resolve(qwen21, SETTINGS, BOTH)).cond
    monkeypatch.setattr("refsd.models.qwen_vl.features_in_places", lambda x, places, deepstack: ())
    without = txt2img.encode(qwen21, resolve(qwen21, SETTINGS, BOTH)).cond
    np.testing.assert_array_equal(cond.context[:, : cond.places[0]], without.context[:, : cond.places[0]])
    assert np.abs(cond.context - without.context)[:, cond.places[0] :].max() > 1e-3


def test_the_vision_tower_sees_white_behind_a_picture_and_the_autoencoder_its_alpha(qwen21):
    plan = resolve(qwen21, SETTINGS, ConditioningImages(reference=CLEAR))
    assert plan.images.references[0].shape[1] == 4
    (latent,) = initial_latent(qwen21, plan, 0).constants.values()
    small = resized(CLEAR, (32, 64), "LANCZOS")
    np.testing.assert_array_equal(latent, qwen21.autoencoder.encode(small * 2 - 1))
    seen = QWEN_IMAGE_21.seen(CLEAR, 8)
    want = small[:, :3] * small[:, 3:] + 1 - small[:, 3:]
    np.testing.assert_allclose(seen, want, rtol=0, atol=0.5 / 255 + 1e-12)
    np.testing.assert_array_equal(on_white(ONE), ONE)


def test_alpha_is_read_and_dropped_where_the_model_has_none(tmp_path, qwen21):
    pixels = (CLEAR[0] * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0)
    Image.fromarray(pixels).save(tmp_path / "clear.png")
    read = read_image("--ref-image", tmp_path / "clear.png")
    np.testing.assert_array_equal(read, CLEAR)
    assert read_image("--control-image", tmp_path / "clear.png").shape[1] == 3
    images = ConditioningImages(init=read, reference=read, more_references=(read,))
    np.testing.assert_array_equal(images.without_alpha().reference, ONE)
    flux = pipeline(tmp_path, "flux-dev")
    kept = resolve(flux, Settings("a cat", width=40, height=24, steps=1), ConditioningImages(init=read)).images
    assert kept.init.shape[1] == 3


def test_the_size_drawn_is_the_last_pictures(qwen21):
    plan = resolve(qwen21, SETTINGS._replace(width=0, height=0), BOTH)
    assert (plan.height, plan.width) == (64, 32)
    assert not any("2511" in notice for notice in plan.notices)


def test_on_the_command_line(qwen21, tmp_path):
    parts = [word for pair in files(tmp_path / "qwen-image21", "qwen-image21", **TOWER).items() for word in pair]
    pixels = (CLEAR[0] * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0)
    Image.fromarray(pixels).save(tmp_path / "in.png")
    drawn = tmp_path / "cat.png"
    given = ("-r", tmp_path / "in.png", "-p", "a cat", "-W", 32, "-H", 16, "--steps", 1, "-o", drawn)
    assert call(*parts, *given).exit_code == 0
    with Image.open(drawn) as image:
        assert image.size == (32, 16) and image.mode == "RGBA"


def test_refusals(qwen21):
    blind = qwen21._replace(image_encoders={})
    with pytest.raises(BadInput, match=r"--ref-image: .* give its vision tower with --llm_vision"):
        resolve(blind, SETTINGS, BOTH)
    with pytest.raises(BadInput, match=r"--ref-image: 5 pictures; .* takes 4 here"):
        resolve(qwen21, SETTINGS, BOTH._replace(more_references=(ONE,) * 4))
    with pytest.raises(BadInput, match=r"the prompt holds <\|image_pad\|>"):
        txt2img.encode(qwen21, resolve(qwen21, SETTINGS._replace(prompt="a <|image_pad|>"), BOTH))
