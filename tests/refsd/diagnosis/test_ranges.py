"""The largest values inside a model."""

import json

import numpy as np
import pytest
from damaged_files import save

from refsd.cli import main
from refsd.components import forward, load, resolve
from refsd.diagnosis.ranges import FLOAT16, Ranges, drawn_inputs, in_order
from refsd.files.formats import open_weights
from refsd.golden.case import ModelRecipe
from refsd.golden.named_numerics import named
from refsd.module import Taps
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint, recipes

FAMILIES = {
    "zimage": "diffusion",
    "flux-dev": "diffusion",
    "sd15": "diffusion",
    "clip-l": "clip_l",
    "taesd": "tae-decoder",
}


def opened(path, component):
    checkpoint = open_checkpoint(path)
    part = resolve(checkpoint, component)
    return part, *load(checkpoint, part, named("float32", []))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ranges_are_those_of_all_taps(family, tmp_path):
    path = recipes.make(ModelRecipe(family, "f16", True), tmp_path / "a.safetensors")
    part, m, params = opened(path, FAMILIES[family])
    inputs = drawn_inputs(part, m)
    m.taps = ranges = Ranges(m)
    forward(part, m, inputs, params)
    m.taps = taps = Taps(ops=True)
    forward(part, m, inputs, params)
    assert len(ranges.found) == len(taps)
    found = in_order(ranges.found)
    assert found[0].worst < FLOAT16
    assert [one.worst for one in found] == sorted((one.worst for one in found), reverse=True)
    for one in found:
        if one.name not in (f"{name}" for name in taps if f"{name}.1" in taps):
            assert one.largest == float(np.abs(taps[one.name]).max())
        bias = m.weights.get(f"{one.name}.bias")
        if one.product is not None and bias is None:
            assert one.product == one.largest


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["refsd", "range", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        return exit.value.code or 0, *capsys.readouterr()

    return run


def test_a_layer_that_overflows_is_named(run, tmp_path):
    path = recipes.make(ModelRecipe("zimage", "f32", True), tmp_path / "a.safetensors")
    code, out, _ = run(path)
    assert code == 0
    assert out.startswith("nothing overflows float16: ")
    of = dict(open_weights(path, mapped=False).items())
    name = "final_layer.linear"
    of[f"{name}.weight"] = stored(of[f"{name}.weight"].values() * np.float32(1e5))

    broken = save(tmp_path / "b.safetensors", of)
    code, out, _ = run(broken)
    assert code == 1
    assert f"overflow float16: {name} reaches" in out.splitlines()[0]
    code, out, _ = run(broken, "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows[name]["overflows"]
    assert rows[name]["product"] > FLOAT16
    assert not rows["x_embedder"]["overflows"]


def test_inputs_of_a_file(run, tmp_path):
    path = recipes.make(ModelRecipe("zimage", "f16", True), tmp_path / "a.safetensors")
    inputs = save(tmp_path / "in.safetensors", {"x": stored(np.ones((1, 3, 2, 2), np.float32))})
    code, _, err = run(path, "--inputs", inputs)
    assert code == 2
    assert "zimage takes x" in err


def test_a_prompt_goes_through_encoders_steps_and_decoder(run, tmp_path, monkeypatch):
    path = recipes.make(ModelRecipe("sd15", "f16", True), tmp_path / "a.safetensors")
    code, out, _ = run(path, "-p", "a cat", "--side", 64, "--steps", 2, "--json")
    assert code == 0
    rows = json.loads(out)
    parts = [row["name"].partition(":")[0] for row in rows]
    assert set(parts) == {"clip", "unet", "vae-decoder"}
    assert {row["step"] for row in rows if row["name"].startswith("unet")} == {1, 2}
    assert {row["step"] for row in rows if not row["name"].startswith("unet")} == {0}

    taps = tmp_path / "taps.safetensors"
    settings = "-W", "64", "-H", "64", "--steps", "2", "-s", "42", "-o", str(tmp_path / "a.png")
    monkeypatch.setattr(
        "sys.argv", ["refsd", "txt2img", "-m", str(path), "-p", "a cat", *settings, "--taps", str(taps)]
    )
    with pytest.raises(SystemExit):
        main()
    image = open_weights(taps)["0.image"].values()
    largest = {row["name"]: row["largest"] for row in rows}
    assert largest["vae-decoder: decoder.conv_out"] == pytest.approx(np.abs(image).max(), rel=1e-4)


def test_a_prompt_with_inputs_is_refused(run, tmp_path):
    path = recipes.make(ModelRecipe("zimage", "f16", True), tmp_path / "a.safetensors")
    assert run(path, "-p", "a cat", "-i", path)[0] == 2
    code, _, err = run(path, "-p", "a cat")
    assert code == 2 and "--llm" in err
