import json

import numpy as np
import pytest
import small_families as small
from PIL import Image
from safetensors.numpy import save_file
from small_pictures import call, files, pipeline

from refsd.conventions.sampling import hires_sdcpp
from refsd.kernels.interpolation_taps import lanczos
from refsd.models.vae.tiling import tiled_sdcpp
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.hires import LATENT_UPSCALERS, HiresSettings, resolve_hires, run_hires
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings
from refsd.samplers.noise import Philox
from refsd.samplers.schedules import discrete

pytestmark = pytest.mark.usefixtures("letters")

SETTINGS = Settings("a lovely cat", "ugly", 12, 16, steps=3, sampler="euler", cfg_scale=3.0)


def prepared(pipe, settings=SETTINGS, **hires):
    plan = resolve(pipe, settings)
    return plan, resolve_hires(pipe, settings, plan, HiresSettings(**hires), Arithmetic(FLOAT64))


@pytest.mark.jitted
@pytest.mark.parametrize("upscaler", ["Latent", "Latent (bicubic antialiased)", "Nearest", "Lanczos"])
def test_it_is_img2img_of_the_enlarged_latent(folder, upscaler):
    pipe = pipeline(folder, "sd3")
    plan, hires = prepared(pipe, upscaler=upscaler, scale=1.5, steps=2, strength=0.6)
    assert (hires.plan.width, hires.plan.height) == (18, 24)
    conditioning = txt2img.encode(pipe, plan)
    first = txt2img.sample(pipe, plan, conditioning, 42)
    heard = {}
    last = run_hires(pipe, hires, first, conditioning, 42, listener=lambda n, x: heard.update({n: np.array(x)}))

    levels = pipe.variant.flow.levels(3.0)
    np.testing.assert_array_equal(hires.plan.sigmas, hires_sdcpp(2, 0.6, lambda n: discrete(n, levels)))
    rng = Philox(42)
    latent = LATENT_UPSCALERS.get(upscaler)
    if latent is None:
        picture = hires.resize(np.clip((txt2img.decode(pipe, first) + 1) / 2, 0, 1), 24, 18)
        again = pipe.autoencoder.encode(np.clip(picture, 0, 1) * 2 - 1, rng.randn)
        np.testing.assert_array_equal(heard["enlarged"], again)
    else:
        np.testing.assert_array_equal(heard["enlarged"], latent(first, *hires.plan.latent_shape[2:]))
    noise = rng.randn(hires.plan.latent_shape)
    np.testing.assert_array_equal(heard["noise"], noise)
    sigma = hires.plan.sigmas[0]
    np.testing.assert_allclose(heard["calls.0.x"], (1 - sigma) * heard["enlarged"] + sigma * noise, rtol=1e-12)
    assert last.shape == hires.plan.latent_shape and np.isfinite(last).all()


def test_the_sizes_of_sd_cli(folder):
    pipe = pipeline(folder, "sd3")
    assert _size(pipe, scale=2.0) == (24, 32)
    assert _size(pipe, width=20) == (20, 20)
    assert _size(pipe, height=18, width=14) == (14, 18)
    _, hires = prepared(pipe, scale=1.3)  # 15.6 x 20.8: rounded to 16 x 21, then up to whole latents
    assert (hires.plan.width, hires.plan.height) == (16, 22) and hires.plan.notices


def _size(pipe, **hires):
    plan = prepared(pipe, **hires)[1].plan
    return plan.width, plan.height


@pytest.mark.parametrize(
    "hires, says",
    [
        ({"strength": 0.0}, "--hires-denoising-strength 0.0: expected above 0"),
        ({"scale": 0.0}, "--hires-scale 0.0: expected above 0, at most 16"),
        ({"scale": float("nan")}, "--hires-scale nan"),
        ({"scale": 0.5}, "6x8 is smaller than the first 12x16"),
        ({"tile_size": 1}, "--hires-upscale-tile-size 1: expected 4 or more"),
        ({"upscaler": "Bilinear"}, "Bilinear: no such file, and none of Latent,"),
        ({"steps": -1}, "hires pass: --steps -1: expected 1 to 1000"),
        ({"sigmas": (0.5, 0.7)}, "--sigmas: expected two numbers or more, falling"),
        ({"width": 5000}, "--width 5000: expected 1 to 4096"),
    ],
)
def test_settings_out_of_range(folder, hires, says):
    with pytest.raises(BadInput, match=says):
        prepared(pipeline(folder, "sd3"), **hires)


def test_diffusers_has_none(folder):
    pipe = pipeline(folder, "sd3")
    with pytest.raises(BadInput, match="--hires: diffusers has no hires pass"):
        prepared(pipe, SETTINGS._replace(like="diffusers"))


def test_lanczos_is_its_formula():
    """A new pixel of 9 from 5: the window's six old pixels, normalised, the border repeated."""
    taps = lanczos(5, 9)
    at = (3 + 0.5) * 5 / 9 - 0.5
    t = np.arange(-1, 5) - at
    weights = np.sinc(t) * np.sinc(t / 3)
    np.testing.assert_allclose(taps.weight[3], weights / weights.sum(), rtol=1e-12)
    assert taps.index[3].tolist() == [0, 0, 1, 2, 3, 4]


@pytest.mark.jitted
def test_an_esrgan_enlarges_the_picture_in_tiles(folder, tmp_path):
    size = small.FAMILIES["esrgan"]["esrgan"]
    save_file(small.weights("esrgan", size, 3), tmp_path / "up.safetensors")
    pipe = pipeline(folder, "sd3")
    plan, hires = prepared(pipe, upscaler=str(tmp_path / "up.safetensors"), steps=1, tile_size=8)
    assert hires.esrgan is not None
    conditioning = txt2img.encode(pipe, plan)
    first = txt2img.sample(pipe, plan, conditioning, 42)
    heard = {}
    run_hires(pipe, hires, first, conditioning, 42, listener=lambda n, x: heard.update({n: np.array(x)}))
    picture = np.clip((txt2img.decode(pipe, first) + 1) / 2, 0, 1)
    run = lambda x: hires.esrgan({"x": x}, "picture")["out"]
    larger = tiled_sdcpp(run, picture, (8, 8), 0.25, up=run(picture[:, :, :4, :4]).shape[2] // 4)
    rows, columns = np.arange(32) * larger.shape[2] // 32, np.arange(24) * larger.shape[3] // 24
    want = pipe.autoencoder.encode(larger[:, :, rows[:, None], columns] * 2 - 1, Philox(42).randn)
    np.testing.assert_allclose(heard["enlarged"], want, rtol=1e-12, atol=1e-12)


@pytest.mark.jitted
@pytest.mark.parametrize("upscaler", ["up.safetensors", "Lanczos"])
def test_a_picture_with_alpha_is_enlarged_with_its_alpha(folder, tmp_path, upscaler):
    """An ESRGAN, which has three channels, sees alpha as a grey picture."""
    save_file(small.weights("esrgan", small.FAMILIES["esrgan"]["esrgan"], 3), tmp_path / "up.safetensors")
    pipe = pipeline(folder, "qwen-image21")
    named = str(tmp_path / upscaler) if upscaler.endswith(".safetensors") else upscaler
    plan, hires = prepared(pipe, upscaler=named, steps=1)
    conditioning = txt2img.encode(pipe, plan)
    first = txt2img.sample(pipe, plan, conditioning, 42)
    heard = {}
    run_hires(pipe, hires, first, conditioning, 42, listener=lambda n, x: heard.update({n: np.array(x)}))
    picture = np.clip((txt2img.decode(pipe, first) + 1) / 2, 0, 1)
    H, W = hires.plan.height, hires.plan.width
    assert picture.shape[1] == 4
    if hires.esrgan is None:
        want = np.clip(hires.resize(picture, H, W), 0, 1)
    else:
        colours, alpha = (hires.esrgan({"x": x}, "picture")["out"] for x in (picture[:, :3], picture[:, [3, 3, 3]]))
        want = hires.resize(np.concatenate([colours, alpha.mean(axis=1, keepdims=True)], axis=1), H, W)
    latent = pipe.autoencoder.encode(want * 2 - 1, Philox(42).randn)
    np.testing.assert_allclose(heard["enlarged"], latent, rtol=1e-12, atol=1e-12)


def test_a_file_that_is_no_esrgan(folder):
    pipe = pipeline(folder, "sd3")
    with pytest.raises(BadInput, match="holds no ESRGAN"):
        prepared(pipe, upscaler=str(folder / "sd3" / "vae.safetensors"))


@pytest.mark.jitted
def test_on_the_command_line(folder, tmp_path):
    pipeline(folder, "sd3")
    output = tmp_path / "cat.png"
    parts = [word for flag, path in files(folder / "sd3", "sd3").items() for word in (flag, path)]
    told = call(
        *parts, "-p", "a cat", "-W", 12, "-H", 16, "--steps", 1, "--hires", "--hires-steps", 1, "--json",
        "-o", output, "--preview", "proj", "--preview-path", tmp_path / "preview.png",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    with Image.open(output) as image:
        assert image.size == (24, 32)
        assert "Hires upscaler: Latent, Hires resize: 24x32" in image.info["parameters"]
    with Image.open(tmp_path / "preview.png") as image:
        assert image.size == (12, 16)  # latents of the second pass, of two pixels a side
    assert json.loads(told.stdout)["settings"]["hires"]["width"] == 24
