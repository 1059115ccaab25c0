"""refsd txt2img as a user calls it: files in, files out."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from refsd.cli import app, main
from refsd.files.formats import open_weights
from refsd.golden.case import ModelRecipe
from refsd.numerics.errors import BadInput
from refsd.samplers.noise import Philox
from refsd.weights import recipes

pytestmark = pytest.mark.jitted  # whole models

QUICK = ["--steps", "1", "-W", "64", "-H", "64", "--sampling-method", "euler"]


def call(*args):
    result = CliRunner().invoke(app, ["txt2img", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def pixels(path):
    with Image.open(path) as png:
        return np.array(png)


def test_a_picture(tiny, tmp_path):
    out, taps = tmp_path / "cat.png", tmp_path / "taps.safetensors"
    result = call("-m", tiny, "-p", "a lovely cat", "-o", out, *QUICK, "--taps", taps, "-v")
    assert result.exit_code == 0
    with Image.open(out) as png:
        assert "Numerics: float32" in png.text["parameters"]
    assert pixels(out).shape == (64, 64, 3) and pixels(out).std() > 1
    tensors = open_weights(taps)
    assert {"cond", "uncond", "0.noise", "0.steps.0.x", "0.calls.0.cond", "0.latent", "0.image"} <= set(tensors)
    image = tensors["0.image"].values()
    expected = np.floor(np.clip((image[0] + 1) / 2, 0, 1) * 255 + 0.5)
    np.testing.assert_array_equal(pixels(out), expected.transpose(1, 2, 0))
    for said in ("vocabulary: ", "step 1/1", "s/it", f"{out}: 64x64, seed 42"):
        assert said in result.stderr


def test_a_samplers_own_schedule_and_custom_sigmas(tiny, tmp_path):
    out = tmp_path / "cat.png"
    quick = ["-m", tiny, "-p", "a cat", "-o", out, "-W", 64, "-H", 64, "--cfg-scale", 1]
    for flags, said in (
        (["--sampling-method", "tcd", "--steps", 1], "Sampler: tcd lcm"),
        (["--sampling-method", "tcd", "--sigmas", "14.6,0", "--eta", "0.5"], "Sampler: tcd custom, Eta: 0.5"),
    ):
        assert call(*quick, *flags).exit_code == 0
        with Image.open(out) as png:
            assert said in png.text["parameters"] and "Steps: 1," in png.text["parameters"]


def test_a_batch_counts_seeds_up_and_sizes_go_up_to_64(tiny, tmp_path):
    out, taps = tmp_path / "cat.png", tmp_path / "taps.safetensors"
    quick = ["--steps", 1, "-W", 63, "-H", 1, "--cfg-scale", 1]
    result = call("-m", tiny, "-p", "", "-o", out, *quick, "-b", 2, "-s", 7, "--taps", taps)
    assert "63x1 goes up to 64x64: multiples of 64" in result.stderr
    tensors = open_weights(taps)
    for b, seed in enumerate((7, 8)):
        with Image.open(tmp_path / f"cat_{b}.png") as png:
            assert png.size == (64, 64) and f"Seed: {seed}, Size: 64x64" in png.text["parameters"]
        np.testing.assert_array_equal(tensors[f"{b}.noise"].values(), Philox(seed).randn((1, 4, 8, 8)))
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "0"], "--steps 0"),
        (["--sampling-method", "heum"], "expected one of euler, euler_a"),
        (["--numerics", "f8"], "--numerics f8: expected one of float64"),
        (["--deviation", "x/y"], "--deviation x/y: expected one of"),
        (["-o", "cat.webp"], "refsd writes PNG"),
        (["--vocab", "nowhere.json"], "nowhere.json"),
        (["--clip-skip", "12"], "clip_skip is 12"),
    ],
)
def test_bad_flags(tiny, tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=said):
        call("-m", tiny, "-p", "a cat", *flags)
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_is_read_is_written(tiny, tmp_path):
    picture = tmp_path / "in.png"
    Image.new("RGB", (64, 64)).save(picture)
    before = picture.read_bytes()
    given = ["-m", tiny, "-p", "a cat", "-i", picture, *QUICK]
    with pytest.raises(BadInput, match="an input of this very run"):
        call(*given, "-o", picture)
    (tmp_path / "model.png").symlink_to(tiny)
    with pytest.raises(BadInput, match="an input of this very run"):
        call(*given, "-o", tmp_path / "model.png")
    with pytest.raises(BadInput, match="an input of this very run"):
        call(*given, "-o", tmp_path / "out.png", "--taps", tiny)
    with pytest.raises(BadInput, match=r"taps\.png: refsd writes tensors to \.safetensors"):
        call(*given, "-o", tmp_path / "out.png", "--taps", tmp_path / "taps.png")
    assert picture.read_bytes() == before and not (tmp_path / "out.png").exists()


def test_exit_code_2(tiny, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["refsd", "txt2img", "-m", str(tiny), "-p", "a cat", "--steps", "-3"])
    with pytest.raises(SystemExit) as error:
        main()
    assert error.value.code == 2
    assert capsys.readouterr().err == "refsd: --steps -3: expected 1 to 1000\n"


def test_a_missing_model():
    with pytest.raises(BadInput, match="nowhere"):
        call("-m", "nowhere.safetensors", "-p", "a cat")


def test_what_is_missing_is_named(tmp_path):
    path = recipes.make(ModelRecipe("zimage", "q4_0", tiny=True), tmp_path / "zimage.gguf")
    lacks = (
        r"Z-Image does not hold qwen3, an autoencoder, which a picture needs: give it with --llm, --taesd or --vae"
    )
    with pytest.raises(BadInput, match=lacks):
        call("--diffusion-model", path, "-p", "a cat")
    with pytest.raises(BadInput, match="no model: name a file or a folder"):
        call("-p", "a cat")


def test_a_recipe_draws_what_its_file_draws(tiny, tmp_path):
    """The model that --model names may be a recipe, as in Python."""
    pictures = [tmp_path / "file.png", tmp_path / "recipe.png"]
    for model, picture in zip([tiny, "recipe:sd15:f16:tiny"], pictures, strict=True):
        call("-m", model, "-p", "a cat", "-W", 64, "-H", 64, "--steps", 1, "-o", picture)
    assert np.array_equal(*(np.asarray(Image.open(picture)) for picture in pictures))
    with pytest.raises(BadInput, match=r"'recipe:sd15:q8_0:x': expected recipe:FAMILY"):
        call("-m", "recipe:sd15:q8_0:x", "-p", "a cat")


def test_what_draws_nothing_is_named(tmp_path):
    path = recipes.make(ModelRecipe("taesd", "f16", tiny=True), tmp_path / "taesd.safetensors")
    with pytest.raises(BadInput, match=r"does not hold .*unet.*: give it with --diffusion-model"):
        call("-m", path, "-p", "a cat")
