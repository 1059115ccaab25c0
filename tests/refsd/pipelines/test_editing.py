"""Pictures to edit with Qwen-Image: their sizes for both encoders, what stands in the prompt, the command line."""

import json

import numpy as np
import pytest
import small_pictures
from PIL import Image
from small_pictures import VOCAB, call, files, pipeline

from refsd.components import COMPONENTS
from refsd.conventions import CONVENTIONS
from refsd.families import editing
from refsd.families.editing import EDIT, EDIT_PLUS, SDCPP, nearest, of_area, resized, whole_tokens
from refsd.models.flux2.network import FLUX2
from refsd.models.qwen_vision.network import QwenVisionSize
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.pipeline import with_cached_references, with_zero_cond_t
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]

TOWER = {"qwen2_5_vision": QwenVisionSize(24, 1, 12, 256, 4)}
RNG = np.random.default_rng(5)
ONE, OTHER = (RNG.integers(0, 256, (1, 3, *size)) / 255 for size in ((24, 40), (33, 20)))
SETTINGS = Settings("a cat", "ugly", 32, 16, steps=1, cfg_scale=2.0)
PAD = VOCAB - 3


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for name in ("LATENT_AREA", "SEEN_AREA"):
        monkeypatch.setattr(editing, name, 32 * 64)
    monkeypatch.setattr(editing, "LEAST", 16 * 16)
    monkeypatch.setattr(editing, "SDCPP_LEAST", 16 * 16)
    monkeypatch.setattr(editing, "SDCPP_MOST", 24 * 24)
    monkeypatch.setattr(small_pictures.Letters, "id_of", lambda self, token: PAD, raising=False)
    plain = small_pictures.Letters.encode

    def encode(self, text):
        words = [plain(self, part) for part in text.split("<|image_pad|>")]
        return [*words[0], *(token for part in words[1:] for token in (PAD, *part))]

    monkeypatch.setattr(small_pictures.Letters, "encode", encode)


@pytest.fixture
def qwen(tmp_path):
    return pipeline(tmp_path, "qwen-image", **TOWER)


@pytest.mark.parametrize(
    ("size", "want"), [((1024, 1024), (1024, 1024)), ((1080, 1920), (768, 1376)), ((500, 100), (2304, 448))]
)
def test_a_million_pixels_in_multiples_of_32(size, want):
    """Worked out by hand: width = sqrt(2^20 * ratio), height = width / ratio, rounded to 32."""
    assert of_area(1024**2, size) == want


@pytest.mark.parametrize(
    ("size", "want"),
    [((384, 384), (392, 392)), ((20, 20), (56, 56)), ((9000, 9000), (3584, 3584)), ((42, 70), (56, 56))],
)
def test_whole_tokens(size, want):
    assert whole_tokens(size, 28, 56 * 56, 28 * 28 * 16384) == want


def test_resizing():
    assert nearest(np.arange(6.0).reshape(1, 1, 2, 3), (4, 2)).ravel().tolist() == [0, 1, 0, 1, 3, 4, 3, 4]
    np.testing.assert_array_equal(resized(ONE, (24, 40), "LANCZOS"), ONE)
    flat = np.full((1, 3, 9, 7), 0.2)
    np.testing.assert_allclose(resized(flat, (16, 8), "BICUBIC"), np.full((1, 3, 16, 8), 51 / 255))


@pytest.mark.parametrize(("rule", "latent", "seen"), [(EDIT, (32, 64), (32, 64)), (SDCPP, (32, 32), (16, 24))])
def test_what_both_encoders_see(rule, latent, seen):
    """sd-cli's pictures have no more pixels than the one that is drawn, here 16 x 64."""
    assert rule.latent(ONE, (16, 64)).shape[2:] == latent
    assert rule.seen(ONE, 8).shape[2:] == seen
    assert [rule.before(2) for rule in (EDIT, EDIT_PLUS)] == ["", "Picture 2: "]


@pytest.mark.parametrize("like", ["diffusers", "sdcpp"])
def test_the_prompt_holds_the_pictures(qwen, monkeypatch, like):
    """Their tokens, in their places; only diffusers gives them rows and columns."""
    given, own = [], COMPONENTS["qwen2_5_vl"]

    def run(m, **inputs):
        given.append(inputs)
        return own.run(m, **inputs)

    monkeypatch.setitem(COMPONENTS, "qwen2_5_vl", own._replace(run=run))
    plan = resolve(qwen, SETTINGS._replace(like=like), ConditioningImages(reference=ONE, more_references=(OTHER,)))
    encoded = txt2img.encode(qwen, plan)
    rule = SDCPP if like == "sdcpp" else EDIT_PLUS
    tokens = [np.prod(rule.seen(picture, 8).shape[2:]) // 64 for picture in (ONE, OTHER)]
    assert len(given) == 2
    for inputs in given:
        ids, positions = inputs["input_ids"], inputs.get("positions")
        assert (ids == PAD).sum() == len(inputs["pictures"]) == sum(tokens)
        assert (positions is None) == (like == "sdcpp")
        if positions is not None:
            rows, columns = (rule.seen(ONE, 8).shape[2:])[0] // 8, (rule.seen(ONE, 8).shape[2:])[1] // 8
            there = positions[0][ids[0] == PAD][: tokens[0]]
            np.testing.assert_array_equal(there - there[0], np.indices((1, rows, columns)).reshape(3, -1).T)
    plain = txt2img.encode(qwen, resolve(qwen, SETTINGS._replace(like=like)))
    assert encoded.cond.context.shape[1] > plain.cond.context.shape[1] + sum(tokens)


def test_latents_of_the_pictures(qwen):
    plan = resolve(qwen, SETTINGS._replace(width=0, height=0, like="diffusers"), ConditioningImages(reference=ONE))
    assert (plan.height, plan.width) == (32, 64)
    start = initial_latent(qwen, plan, 1)
    (latent,) = start.constants.values()
    want = qwen.autoencoder.encode(resized(ONE, (32, 64), "LANCZOS") * 2 - 1)
    np.testing.assert_array_equal(latent, want)
    assert [*start.constants] == ["reference"]


def test_edit_2511_is_told_or_asked_for(qwen):
    images = ConditioningImages(reference=ONE)
    assert any("--qwen-image-zero-cond-t" in notice for notice in resolve(qwen, SETTINGS, images).notices)
    assert not resolve(qwen, SETTINGS).notices
    told = with_zero_cond_t(qwen)
    assert told.denoiser.params["zero_cond_t"] is True
    assert not any("2511" in notice for notice in resolve(told, SETTINGS, images).notices)


def test_on_the_command_line(qwen, tmp_path):
    parts = [word for pair in files(tmp_path / "qwen-image", "qwen-image", **TOWER).items() for word in pair]
    named = []
    for i, picture in enumerate((ONE, OTHER)):
        bytes_ = (picture[0] * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(bytes_).save(tmp_path / f"{i}.png")
        named += ["-r", tmp_path / f"{i}.png"]
    drawn = tmp_path / "cat.png"
    given = ("-p", "a cat", "-W", 32, "-H", 16, "--steps", 1, "--qwen-image-zero-cond-t", "-o", drawn)
    assert call(*parts, *named, *given).exit_code == 0
    with Image.open(drawn) as image:
        assert image.size == (32, 16)


def test_klein_kv_is_told_or_named_by_the_folder(tmp_path):
    """With --like sdcpp it is run as klein."""
    klein, diffusers = pipeline(tmp_path, "flux2-klein"), CONVENTIONS["diffusers"]
    plan = resolve(klein, SETTINGS._replace(like="diffusers", cfg_scale=1.0), ConditioningImages(reference=ONE))
    texts, start = txt2img.encode(klein, plan), initial_latent(klein, plan, 1)
    told = with_cached_references(klein, diffusers)
    drawn = [txt2img.sample(pipe, plan, texts, 1, start=start) for pipe in (klein, told)]
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-4
    assert told.denoiser_of(diffusers).params["cached_references"] is True
    assert told.denoiser_of(CONVENTIONS["sdcpp"]).params["cached_references"] is False
    for program in ("Flux2KleinKVPipeline", "Flux2KleinPipeline"):
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": program}))
        params = FLUX2.config(tmp_path / "transformer" / "config.json", {}, {})
        assert params["cached_references"] == (program == "Flux2KleinKVPipeline")
    assert FLUX2.config(tmp_path / "transformer" / "klein.safetensors", {}, {})["cached_references"] is False


def test_klein_kv_on_the_command_line(tmp_path):
    parts = [word for pair in files(tmp_path, "flux2-klein").items() for word in pair]
    given = [*parts, "-p", "a cat", "-W", 32, "-H", 16, "--steps", 1, "-o", tmp_path / "cat.png"]
    assert call(*given, "--flux2-klein-kv", "--like", "diffusers").exit_code == 0
    with pytest.raises(BadInput, match="--flux2-klein-kv: sdcpp runs these weights as klein's"):
        call(*given, "--flux2-klein-kv")


def test_refusals(qwen, tmp_path):
    one = ConditioningImages(reference=ONE)
    blind = qwen._replace(image_encoders={})
    with pytest.raises(BadInput, match=r"--ref-image: .* give its vision tower with --llm_vision"):
        resolve(blind, SETTINGS, one)
    with pytest.raises(BadInput, match=r"--ref-image: 5 pictures; .* takes 4 here"):
        resolve(qwen, SETTINGS, one._replace(more_references=(ONE,) * 4))
    with pytest.raises(BadInput, match=r"the prompt holds <\|image_pad\|>"):
        txt2img.encode(qwen, resolve(qwen, SETTINGS._replace(prompt="a <|image_pad|>"), one))
    with pytest.raises(BadInput, match=r"--qwen-image-zero-cond-t: FLUX.1 dev or Kontext is no Qwen-Image-Edit"):
        with_zero_cond_t(pipeline(tmp_path, "flux-dev"))
    with pytest.raises(BadInput, match=r"--flux2-klein-kv: Qwen-Image or Qwen-Image-Edit is no FLUX.2 klein"):
        with_cached_references(qwen, CONVENTIONS["diffusers"])
    with pytest.raises(BadInput, match=r"--ref-image: 2 pictures; FLUX.1 dev or Kontext takes 1 here"):
        resolve(
            pipeline(tmp_path, "flux-dev"),
            SETTINGS,
            ConditioningImages(reference=ONE[:, :, :16, :32], more_references=(ONE[:, :, :16, :32],)),
        )
