"""Conditioning images: reading, refusals, and the latents and extra channels made of them."""

import json

import numpy as np
import pytest
import small_families
import small_pictures as small
from PIL import Image
from small_pictures import call, pipeline

from refsd.conventions import CONVENTIONS
from refsd.models.controlnet.network import ControlNetSize
from refsd.models.zimage_controlnet.network import ZImageControlSize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages, read_image
from refsd.pipelines.initial_latent import EXTRA_CHANNELS, initial_latent, widened
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.samplers.noise import RNGS
from refsd.weights import open_checkpoint

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]  # whole models

F64 = ["--numerics", "float64"]
PICTURE = np.random.default_rng(5).random((1, 3, 16, 32))
MASK = (np.random.default_rng(6).random((1, 1, 16, 32)) > 0.9).astype(np.float64)


@pytest.fixture
def png(tmp_path):
    path = tmp_path / "given.png"
    Image.fromarray((PICTURE[0] * 255).astype(np.uint8).transpose(1, 2, 0)).save(path)
    return path


def test_what_is_read(tmp_path, png):
    read = read_image("--init-img", png)
    np.testing.assert_array_equal(read, np.floor(PICTURE * 255) / 255)
    grey = tmp_path / "mask.png"
    Image.fromarray(np.array([[0, 127, 128, 255]], np.uint8)).save(grey)
    assert read_image("--mask", grey).tolist() == [[[[0, 0, 1, 1]]]]


def test_the_first_line_of_what_pillow_says(png, monkeypatch):
    def fails(file):
        raise ValueError("bad chunk\nin a file\n")

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(BadInput, match=r"given.png: no picture that can be read: bad chunk$"):
        read_image("--init-img", png)


def test_no_picture(tmp_path):
    (tmp_path / "no.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    for name, said in (
        ("no.png", r"no picture that can be read: \S"),
        ("nowhere.png", "cannot read the file"),
    ):
        with pytest.raises(BadInput, match=rf"--mask .*{name}: {said}"):
            read_image("--mask", tmp_path / name)
    Image.new("1", (4097, 1)).save(tmp_path / "wide.png")
    with pytest.raises(BadInput, match="4097x1 pixels; at most 4096"):
        read_image("--init-img", tmp_path / "wide.png")


def test_masks_of_latents():
    for like in ("sdcpp", "diffusers"):
        made = CONVENTIONS[like].latent_mask(MASK, 2)
        for i, j in np.ndindex(8, 16):
            square = MASK[0, 0, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            assert made[0, 0, i, j] == (square.max() if like == "sdcpp" else square[0, 0])
    one = np.zeros((1, 1, 4, 5))
    one[0, 0, 0, 3] = 1
    assert widened(one)[0, 0].tolist() == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0] * 5, [0] * 5]


@pytest.mark.parametrize("like", ["sdcpp", "diffusers"])
def test_what_stands_behind_x(folder, like):
    """An encoder that takes each square's first pixel, so that its place can be read."""

    class Encoder:
        pixels = 2
        encode = staticmethod(lambda picture, draw=None, scaled=True: picture[:, :, ::2, ::2])

    def made(kind, **images):
        return EXTRA_CHANNELS[kind](ConditioningImages(**images), Encoder(), CONVENTIONS[like], None)

    first, mask = 2 * PICTURE[:, :, ::2, ::2] - 1, CONVENTIONS[like].latent_mask(MASK, 2)
    inpaint = made("inpaint", init=PICTURE, mask=MASK)
    masked = first * (1 - MASK[:, :, ::2, ::2])
    np.testing.assert_array_equal(inpaint.cond, np.concatenate([mask, masked], axis=1))
    np.testing.assert_array_equal(inpaint.uncond[:, :1], mask)
    np.testing.assert_array_equal(inpaint.uncond[:, 1:], 0 * masked if like == "sdcpp" else masked)
    fill = made("fill", init=PICTURE, mask=MASK).cond
    np.testing.assert_array_equal(fill[:, :3], masked)
    for row, column in np.ndindex(2, 2):
        np.testing.assert_array_equal(fill[:, 3 + 2 * row + column], MASK[:, 0, row::2, column::2])
    edit, control = made("edit", reference=PICTURE), made("control", control=PICTURE)
    np.testing.assert_array_equal(edit.cond, first)
    assert not edit.uncond.any()
    np.testing.assert_array_equal(control.cond, first)
    assert control.uncond.any() == (like == "diffusers")


@pytest.mark.parametrize("family", ["sd15", "flux-dev"])
def test_from_a_picture_by_hand(folder, family):
    """Begun at the truncated schedule's first level; the posterior drawn from the first seed's stream."""
    pipe = pipeline(folder, family)
    settings = Settings("a cat", "", 32, 16, 4, 1.0, "euler", strength=0.5, seed=7, batch_count=2)
    plan = resolve(pipe, settings, ConditioningImages(init=PICTURE))
    levels = plan.sigmas
    np.testing.assert_array_equal(levels, resolve(pipe, settings).sigmas[1:])
    begin = initial_latent(pipe, plan, 8)
    said = pipe.autoencoder.encoder({"x": 2 * PICTURE - 1}, "picture")
    normal = RNGS["cuda"](7).randn(said["mean"].shape)
    z = said["mean"] + np.exp(0.5 * said["logvar"]) * normal
    scale = (z - 0) * 0.18215 if family == "sd15" else (z - 0.1159) * 0.3611
    np.testing.assert_allclose(begin.latent, scale, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(begin.noise, RNGS["cuda"](8).randn(begin.noise.shape))
    heard = {}
    both = txt2img.encode(pipe, plan)
    txt2img.sample(pipe, plan, both, 8, None, lambda name, x: heard.update({name: np.array(x)}), begin)
    share = 1 if family == "sd15" else 1 - levels[0]
    np.testing.assert_allclose(heard["steps.0.x"], share * scale + levels[0] * begin.noise, rtol=1e-9, atol=1e-12)
    assert "steps.3.x" not in heard


def test_what_is_not_drawn_anew_stays(folder):
    pipe = pipeline(folder, "flux-dev")
    settings = Settings("a cat", "", 32, 16, 3, 1.0, "euler")
    plan = resolve(pipe, settings, ConditioningImages(init=PICTURE, mask=MASK))
    begin = initial_latent(pipe, plan, 8)
    latent = txt2img.sample(pipe, plan, txt2img.encode(pipe, plan), 8, start=begin)
    kept = np.broadcast_to(begin.mask == 0, latent.shape)
    np.testing.assert_allclose(latent[kept], begin.latent[kept], rtol=1e-12)
    assert not np.isclose(latent[~kept], begin.latent[~kept]).any()


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("sd15", ["--init-img", "--mask"]),
        ("sd15-inpaint", ["--init-img", "--mask"]),
        ("sd15-edit", ["--ref-image"]),
        ("flux-dev", ["--ref-image"]),
        ("flux-control", ["--control-image"]),
        ("flux-fill", ["--init-img", "--mask"]),
        ("flux2-klein", ["--init-img", "--ref-image"]),
        ("flux3-distilled", ["--init-img", "--ref-image", "--ref-image"]),
        ("chroma-radiance", ["--init-img"]),
    ],
)
def test_the_command(folder, tmp_path, png, family, flags):
    place = folder / family
    place.mkdir(exist_ok=True)
    parts = [word for pair in small.files(place, family).items() for word in pair]
    shown = [word for flag in flags for word in (flag, png)]
    out = tmp_path / "cat.png"
    more = ["--img-cfg-scale", 1.5] if family == "sd15-edit" else []
    result = call(*parts, "-p", "a cat", "--steps", 2, "-o", out, "--json", *shown, *more, *F64)
    told = json.loads(result.stdout)["settings"]
    with Image.open(out) as picture, Image.open(png) as first:
        assert picture.size == first.size == (told["width"], told["height"])
        assert np.array(picture).std() > 1


def test_a_controlnet(folder, tmp_path):
    """Hints have eight pixels a latent: so has this autoencoder."""
    (size,) = small_families.FAMILIES["sd15"].values()
    vae = small.PARTS["sd15"]["vae"]._replace(widths=(32, 32, 32, 32))
    place = folder / "controlled"
    place.mkdir(exist_ok=True)
    pipe = pipeline(folder, "sd15")
    files = small.files(place, "sd15", controlnet=ControlNetSize(size), vae=vae)
    parts = [word for pair in files.items() for word in pair]
    hint = tmp_path / "hint.png"
    Image.fromarray(np.full((64, 128, 3), 200, np.uint8)).save(hint)
    drawn = []
    for strength in (0.0, 0.9):
        out = tmp_path / f"{strength}.png"
        call(
            *parts, "-p", "a cat", "--control-image", hint, "--control-strength", strength, "--steps", 1, "-o", out
        )
        with Image.open(out) as picture:
            drawn.append(np.array(picture))
    assert not np.array_equal(*drawn)
    with pytest.raises(BadInput, match=r"--control-image: Stable Diffusion 1\.x has no use for it, or lacks"):
        resolve(pipe, Settings("", width=32, height=16), ConditioningImages(control=PICTURE))


def test_z_images_controlnet_reads_the_pictures_latent(folder, tmp_path, png):
    (size,) = small_families.FAMILIES["zimage"].values()
    control = ZImageControlSize(size.hidden, 1, 1, True, size.head_dim, size.mlp, 132, size.time_dim)
    parts = small.files(folder / "zimage-controlled", "zimage", **{"zimage-controlnet": control})
    given = [word for pair in parts.items() for word in pair]
    drawn = set()
    for strength in (0, 0.9):
        out = tmp_path / f"{strength}.png"
        call(*given, "-p", "a cat", "--control-image", png, "--control-strength", strength, "--steps", 1, "-o", out)
        drawn.add(out.read_bytes())
    assert len(drawn) == 2
    checkpoint = open_checkpoint(None, parts)
    pipe = open_pipeline(checkpoint, Tokenizers(), Arithmetic(FLOAT64), 1 << 30)
    plan = resolve(pipe, Settings("", width=32, height=16), ConditioningImages(control=PICTURE))
    hint = initial_latent(pipe, plan, 0).constants["hint"]
    latent = pipe.autoencoder.encode(2 * PICTURE - 1)
    assert hint.shape == (1, 33, *latent.shape[2:]) and not hint[:, latent.shape[1] :].any()
    np.testing.assert_array_equal(hint[:, : latent.shape[1]], latent)
    wide = {"zimage-controlnet": control._replace(hidden=2 * size.hidden)}
    other = small.files(folder / "zimage-wide", "zimage", **wide)
    with pytest.raises(BadInput, match="this ControlNet was trained for another model"):
        open_pipeline(open_checkpoint(None, other), Tokenizers(), Arithmetic(FLOAT64))


def test_a_controlnet_union_is_told_what_its_picture_shows(folder, tmp_path):
    (size,) = small_families.FAMILIES["sd15"].values()
    vae = small.PARTS["sd15"]["vae"]._replace(widths=(32, 32, 32, 32))
    files = small.files(folder / "union", "sd15", controlnet=ControlNetSize(size, kinds=6), vae=vae)
    hint = tmp_path / "hint.png"
    Image.fromarray(np.full((64, 128, 3), 200, np.uint8)).save(hint)
    parts = [word for pair in files.items() for word in pair]
    given = *parts, "-p", "a cat", "--control-image", hint, "--steps", 1, "-o", tmp_path / "a.png"
    drawn = set()
    for kind in ("canny", "depth"):
        call(*given, "--control-type", kind)
        drawn.add((tmp_path / "a.png").read_bytes())
    assert len(drawn) == 2
    with pytest.raises(BadInput, match="--control-net: it reads several kinds of pictures: say --control-type"):
        call(*given)
    with pytest.raises(BadInput, match=r"--control-type repaint: expected openpose, .*, segment$"):
        call(*given, "--control-type", "repaint")
    with pytest.raises(BadInput, match="--control-type canny: there is no ControlNet Union"):
        resolve(pipeline(folder, "sd15"), Settings("", width=32, height=16, control_type="canny"))


@pytest.mark.parametrize(
    ("family", "images", "said"),
    [
        ("sd15", {"mask": MASK}, "--mask: it says what of --init-img is drawn anew"),
        ("sd15", {"init": PICTURE[:, :, 1:]}, "--init-img: the picture has 32x15 pixels and 32x16 are drawn"),
        ("sd15", {"reference": PICTURE}, "--ref-image: Stable Diffusion 1.x edits no picture"),
        ("qwen-image", {"reference": PICTURE}, "--ref-image: Qwen-Image or Qwen-Image-Edit's text encoder must"),
        ("sd15-inpaint", {"init": PICTURE}, "these weights are for inpainting: give --init-img and --mask"),
        ("sd15-edit", {}, "these weights edit a picture: give it with --ref-image"),
        ("flux-control", {}, "follow a picture of edges or depths: give it with --control-image"),
        ("flux-dev", {"control": PICTURE}, "--control-image: FLUX.1 dev or Kontext has no use for it"),
    ],
)
def test_refused(folder, family, images, said):
    with pytest.raises(BadInput, match=said):
        resolve(pipeline(folder, family), Settings("", width=32, height=16), ConditioningImages(**images))


@pytest.mark.parametrize(
    ("family", "like", "shape"),
    [
        ("flux-dev", "sdcpp", (16, 36)),  # sqrt(512 * 32 / 14) wide, and 14 / 32 of that high
        ("flux-dev", "diffusers", (12, 32)),
        ("flux2-klein", "diffusers", (12, 32)),
        ("flux3", "diffusers", (64, 64)),
    ],
)
def test_a_picture_to_edit_of_any_size(folder, family, like, shape):
    """As each engine resizes a picture of 32 x 14 where 32 x 16 are drawn: tokens have 4 pixels a side."""
    given = ConditioningImages(reference=PICTURE[:, :, 2:])
    plan = resolve(pipeline(folder, family), Settings("", width=32, height=16, like=like), given)
    assert plan.images.reference is not None and plan.images.reference.shape == (1, 3, *shape)
    if family == "flux2-klein":
        np.testing.assert_array_equal(plan.images.reference, PICTURE[:, :, 3:15])


def test_a_picture_to_edit_without_a_whole_token(folder):
    images = ConditioningImages(reference=PICTURE[:, :, 13:])
    with pytest.raises(BadInput, match="--ref-image: a side of fewer than 4 pixels"):
        resolve(pipeline(folder, "flux2-klein"), Settings("", width=32, height=16, like="diffusers"), images)


def test_a_strength_that_leaves_no_step(folder):
    pipe = pipeline(folder, "sd15")
    settings, images = Settings("", steps=4, strength=0.1), ConditioningImages(init=PICTURE)
    with pytest.raises(BadInput, match=r"--strength 0\.1 of --steps 4 leaves no step: raise one of them"):
        resolve(pipe, settings._replace(like="diffusers"), images)
    assert len(resolve(pipe, settings, images).sigmas) == 2


def test_the_guidance_by_a_picture_to_edit_that_each_engine_takes_by_itself(folder):
    """diffusers: image_guidance_scale of both InstructPix2Pix pipelines; sd-cli: --img-cfg-scale is --cfg-scale."""
    pipe, images = pipeline(folder, "sd15-edit"), ConditioningImages(reference=PICTURE)
    for like, scale in (("diffusers", 1.5), ("sdcpp", 4.0)):
        settings = Settings("", cfg_scale=4.0, like=like)
        assert resolve(pipe, settings, images).image_cfg_scale == scale
        assert resolve(pipe, settings._replace(image_cfg_scale=1.75), images).image_cfg_scale == 1.75
    assert resolve(pipeline(folder, "sd15"), Settings("", like="diffusers")).image_cfg_scale is None


def test_each_condition_has_its_own_behind_it(folder):
    """Of pix2pix: the picture with the prompt and without, and neither."""
    pipe = pipeline(folder, "sd15-edit")
    settings = Settings("a cat", "ugly", 32, 16, 1, 4.0, "euler", image_cfg_scale=1.5)
    plan = resolve(pipe, settings, ConditioningImages(reference=PICTURE))
    begin = initial_latent(pipe, plan, 8)
    both, heard = txt2img.encode(pipe, plan), {}
    txt2img.sample(pipe, plan, both, 8, None, lambda name, x: heard.update({name: np.array(x)}), begin)
    latent = begin.extra.cond
    parts = {"cond": (both.cond, latent), "image": (both.uncond, latent), "uncond": (both.uncond, 0 * latent)}
    said = {}
    for name, (text, behind) in parts.items():
        x = np.concatenate([heard["calls.0.x"], behind], axis=1)
        inputs = {"x": x, "timesteps": heard["calls.0.timesteps"], "context": text.context}
        said[name] = pipe.denoiser(inputs, "by hand")["out"]
        np.testing.assert_allclose(heard[f"calls.0.{name}"], said[name], rtol=1e-12)
    guided = said["uncond"] + 1.5 * (said["image"] - said["uncond"]) + 4.0 * (said["cond"] - said["image"])
    np.testing.assert_allclose(heard["steps.0.eps"], guided, rtol=1e-8, atol=1e-12)
