"""A picture as words: Redux's tokens follow the prompt's, and only the prompt's."""

import numpy as np
import pytest
from PIL import Image
from small_pictures import call, files, pipeline

from refsd.models.redux import redux
from refsd.models.vision import siglip_vision
from refsd.models.vision.network import ReduxSize, VisionSize
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]

PARTS = {"siglip": VisionSize(32, 2, 40, patch=2, tokens=9), "redux": ReduxSize(32, 40)}
SETTINGS = Settings("a cat", "ugly", 8, 12, steps=1, cfg_scale=2.0)
PICTURE = np.random.default_rng(3).integers(0, 256, (6, 6, 3), np.uint8)


@pytest.fixture
def flux(folder, tmp_path):
    return pipeline(tmp_path, "flux-dev", **PARTS)


def test_the_tokens_follow_the_prompts(flux):
    image = PICTURE.transpose(2, 0, 1)[None] / 255
    plan = resolve(flux, SETTINGS, ConditioningImages(redux=image))
    plain = txt2img.encode(flux, resolve(flux, SETTINGS))
    both = txt2img.encode(flux, plan)
    tower, words = (flux.image_encoders[name].module for name in ("siglip", "redux"))
    want = redux(words, siglip_vision(tower, image * 2 - 1, flux.image_encoders["siglip"].params["num_heads"]))
    length = plain.cond.context.shape[1]
    np.testing.assert_array_equal(both.cond.context[:, :length], plain.cond.context)
    np.testing.assert_allclose(both.cond.context[:, length:], want, rtol=1e-12)
    assert both.uncond is not None and plain.uncond is not None
    np.testing.assert_array_equal(both.uncond.context, plain.uncond.context)


def test_on_the_command_line(flux, tmp_path):
    Image.fromarray(PICTURE).save(tmp_path / "seen.png")
    there = files(tmp_path / "flux-dev", "flux-dev", **PARTS)
    parts = [word for flag, path in there.items() for word in (flag, path)]
    drawn = tmp_path / "cat.png"
    given = ("-p", "a cat", "-W", 8, "-H", 12, "--steps", 1, "--redux-image", tmp_path / "seen.png", "-o", drawn)
    assert call(*parts, *given).exit_code == 0
    with Image.open(drawn) as image:
        assert image.size == (8, 12)


def test_what_is_missing(folder, flux):
    image = np.zeros((1, 3, 6, 6))
    with pytest.raises(BadInput, match=r"--redux-image: .* needs --redux and --clip_vision"):
        resolve(pipeline(folder, "flux-dev"), SETTINGS, ConditioningImages(redux=image))
    with pytest.raises(BadInput, match=r"--redux-image: tensor x .* the model takes 6 to 7"):
        txt2img.encode(flux, resolve(flux, SETTINGS, ConditioningImages(redux=np.zeros((1, 3, 8, 6)))))


def test_redux_needs_its_encoder(tmp_path):
    with pytest.raises(BadInput, match="--redux: it reads a picture through SigLIP: give that with --clip_vision"):
        pipeline(tmp_path, "flux-dev", redux=PARTS["redux"])
