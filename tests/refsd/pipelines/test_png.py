from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from refsd import __version__
from refsd.circular import CircularAxes
from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.conventions.sdcpp import PICTURES as SDCPP
from refsd.models.vae.tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines.plan import check_ranges
from refsd.pipelines.png import output_paths, parameters_text, to_bytes, write_png
from refsd.pipelines.settings import Settings


def test_bytes_are_rounded_and_clipped():
    values = [-3.0, -1.0, -1 + 1 / 255, -1 + 1.001 / 255, 0.0, 1.0 - 1 / 255.1, 1.0, 2.0]
    image = np.zeros((1, 3, 2, len(values)))
    image[0, 1, 0] = values
    pixels = to_bytes(image)
    assert pixels.shape == (2, len(values), 3) and pixels.dtype == np.uint8
    assert pixels[0, :, 1].tolist() == [0, 0, 1, 1, 128, 255, 255, 255]
    assert (pixels[1] == 128).all()


def test_names_of_files():
    assert output_paths(Path("a/b/cat.png"), 1) == [Path("a/b/cat.png")]
    assert output_paths(Path("cat.v2.PNG"), 2) == [Path("cat.v2_0.PNG"), Path("cat.v2_1.PNG")]
    assert output_paths(Path("cat"), 1) == [Path("cat.png")]
    with pytest.raises(BadInput, match=r"cat\.jpg: refsd writes PNG"):
        output_paths(Path("cat.jpg"), 1)


def plan(**changes):
    settings = Settings("a cat", "ugly", 64, 128, 3, 7.0, "euler_a", "discrete", "cuda", clip_skip=2)
    return SimpleNamespace(**settings._asdict() | {"convention": SDCPP, "custom_sigmas": False} | changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"tiling": Tiling(), "circular": CircularAxes(True, True)},
            "Clip skip: 2, VAE tiles: 0x0 by 0.5, Circular: xy, V",
        ),
        (
            {"tiling": Tiling(8, 4, 9, 0.5, 2), "circular": CircularAxes(y=True)},
            "VAE tiles: 0.5x2 by 0.5, Circular: y, V",
        ),
        ({"convention": DIFFUSERS, "like": "diffusers"}, "Clip skip: 2, Like: diffusers, Version"),
        ({"custom_sigmas": True, "eta": 0.5}, "Sampler: euler_a custom, Eta: 0.5, Clip"),
    ],
)
def test_parameters_of_a_plan(changes, text):
    assert text in parameters_text(plan(**changes), 7, {})


@pytest.mark.parametrize("prompt", ["a cat", "кот, 猫"])
def test_parameters_in_the_png(tmp_path, prompt):
    path = tmp_path / "cat.png"
    write_png(path, np.zeros((128, 64, 3), np.uint8), parameters_text(plan(prompt=prompt), 7, {"Model": "m"}))
    with Image.open(path) as png:
        assert png.size == (64, 128)
        assert png.text["parameters"] == (
            f"{prompt}\nNegative prompt: ugly\nSteps: 3, CFG scale: 7.0, Seed: 7, Size: 64x128, RNG: cuda, "
            f"Sampler: euler_a discrete, Clip skip: 2, Model: m, Version: refsd {__version__}"
        )
    assert [p.name for p in path.parent.iterdir()] == ["cat.png"]


def test_a_picture_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "cat.png").mkdir()
    with pytest.raises(BadInput, match="a folder; refsd writes whole files only"):
        write_png(tmp_path / "cat.png", np.zeros((8, 8, 3), np.uint8), "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cat.png", "file"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampler": "heum"}, "--sampling-method heum: expected one of euler, euler_a"),
        ({"schedule": "sai"}, "--scheduler sai: expected one of discrete, karras"),
        ({"rng": "std_default"}, "--rng std_default"),
        ({"width": -1}, "--width -1: expected 1 to 4096"),
        ({"height": 1 << 40}, "--height"),
        ({"steps": 0}, "--steps 0"),
        ({"cfg_scale": float("nan")}, "--cfg-scale nan"),
        ({"prompt": "caf\udce9"}, "not UTF-8"),
    ],
)
def test_settings_out_of_range(change, said):
    with pytest.raises(BadInput, match=said):
        check_ranges(Settings("a cat")._replace(**change))


def test_batch_count():
    check_ranges(Settings("a cat", batch_count=2))
    with pytest.raises(BadInput, match="--batch-count 0"):
        check_ranges(Settings("a cat", batch_count=0))
