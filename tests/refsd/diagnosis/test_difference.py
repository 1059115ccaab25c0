"""Two weight files compared, across layouts and storage types."""

import json

import numpy as np
import pytest
from damaged_files import save

from refsd.cli import main
from refsd.diagnosis.difference import compare, of_two_models
from refsd.files.formats import open_weights
from refsd.golden.case import ModelRecipe
from refsd.kernels.quant import BLOCK_TYPES, convrot, int8_scaled
from refsd.numerics.tensor import StoredTensor, stored
from refsd.weights import recipes


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny Z-Image in f16."""
    return recipes.make(ModelRecipe("zimage", "f16", True), tmp_path_factory.mktemp("m") / "a.safetensors")


def tensors(path):
    return dict(open_weights(path, mapped=False).items())


def quantized(tensor, type):
    block = BLOCK_TYPES[type]
    blocks = np.asarray(tensor.values(), np.float32).reshape(-1, block.block)
    return StoredTensor(type, tensor.shape, block.quantize(blocks).reshape(-1))


def changed(model, tmp_path, name, change):
    of = tensors(model)
    of[name] = change(of[name])
    return {row.name: row for row in compare(model, save(tmp_path / "b.safetensors", of)) if row.verdict != "same"}


W1, OUT = "layers.0.feed_forward.w1.weight", "layers.1.attention.out.weight"
SHUFFLED = np.random.default_rng(0).permutation(384)


def values(function):
    return lambda tensor: stored(np.ascontiguousarray(function(np.asarray(tensor.values(), np.float32))))


CHANGES = {
    "transposed": (W1, values(np.transpose), "transposed", ""),
    "transposed, square": (OUT, values(np.transpose), "transposed", ""),
    "scaled": (W1, values(lambda w: w * np.float32(0.5)), "scaled", "by 0.5"),
    "cast": (W1, values(lambda w: w), "cast", ""),
    "cast with an error": (W1, values(lambda w: w.astype("bfloat16")), "cast", ""),
    "permuted": (OUT, lambda t: stored(np.asarray(t.values())[SHUFFLED]), "permuted", "its rows"),
    "changed": (OUT, values(lambda w: w + np.abs(w)), "changed", ""),
    "NaN": (
        OUT,
        values(lambda w: np.where(np.arange(384)[:, None] == 7, np.float32("nan"), w)),
        "changed",
        "384 NaN or infinite, 0 in the first",
    ),
    "three rows": (
        OUT,
        values(lambda w: w * (np.arange(384) % 128 != 5)[:, None]),
        "changed",
        "3 of 384 rows all zero",
    ),
    "shape": (OUT, values(lambda w: w[:100]), "shape", "[384, 384] and [100, 384]"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_one_change(kind, model, tmp_path):
    name, change, verdict, detail = CHANGES[kind]
    ((found, row),) = changed(model, tmp_path, name, change).items()
    assert found == f"zimage: {name}"
    assert row.verdict == verdict
    assert detail in row.detail


def test_convolutions_with_permuted_axes(tmp_path):
    w = np.random.default_rng(0).standard_normal((4, 5, 3, 3), np.float32)
    a = save(tmp_path / "a.safetensors", {"x": stored(w)})
    b = save(tmp_path / "b.safetensors", {"x": stored(np.ascontiguousarray(w.transpose(2, 3, 1, 0)))})
    (row,) = compare(a, b)
    assert (row.verdict, row.detail, row.error) == ("permuted", "axes [2, 3, 1, 0]", 0.0)


def test_swapped(model, tmp_path):
    of = tensors(model)
    w3 = W1.replace("w1", "w3")
    of[W1], of[w3] = of[w3], of[W1]
    rows = {row.name: row for row in compare(model, save(tmp_path / "b.safetensors", of)) if row.verdict != "same"}
    assert {name: row.detail for name, row in rows.items()} == {
        f"zimage: {W1}": f"with zimage: {w3}",
        f"zimage: {w3}": f"with zimage: {W1}",
    }


@pytest.mark.parametrize(
    ("type", "least", "most"), [("q8_0", 1e-3, 1e-2), ("q4_0", 0.03, 0.12), ("q2_k", 0.1, 0.4)]
)
def test_requantised_with_its_error(type, least, most, model, tmp_path):
    of = tensors(model)
    width = BLOCK_TYPES[type].block
    big = [n for n, t in of.items() if n.startswith("layers.") and len(t.shape) == 2 and t.shape[1] % width == 0]
    of |= {name: quantized(of[name], type) for name in big}
    rows = {row.name.removeprefix("zimage: "): row for row in compare(model, save(tmp_path / "b.gguf", of))}
    assert {name for name, row in rows.items() if row.verdict == "requantised"} == set(big)
    assert all(row.verdict == "same" for name, row in rows.items() if name not in big)
    for name in big:
        a, b = (np.asarray(t.values(), np.float64) for t in (tensors(model)[name], of[name]))
        assert rows[name].types == ("f16", type)
        assert rows[name].error == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-9)
        assert least < rows[name].error < most


HEALTHY, TWICE, UNTOLD = "requantised", "scaled", "rotated"


@pytest.mark.parametrize("verdict", [HEALTHY, TWICE, UNTOLD])
def test_int8_of_all_matrices(verdict, model, tmp_path, monkeypatch, capsys):
    """int8 with a scale a row: right, with a scale applied twice, and rotated without saying so."""
    of = tensors(model)
    matrices = [n for n, t in of.items() if n.startswith("layers.") and len(t.shape) == 2 and t.shape[1] % 256 == 0]
    for name in matrices:
        w = np.asarray(of[name].values(), np.float32)
        codes, scale = int8_scaled.quantize(convrot.rotate(w) if verdict == UNTOLD else w)
        of[name] = stored(codes)
        of[f"{name}_scale"] = stored(scale[:, None] * np.float32(1 + (verdict == TWICE)))
        told = json.dumps({"format": "int8_tensorwise"}).encode()
        of[name.removesuffix("weight") + "comfy_quant"] = stored(np.frombuffer(told, np.uint8))
    b = save(tmp_path / "b.safetensors", of)
    rows = [row for row in compare(model, b) if row.name.removeprefix("zimage: ") in matrices]
    assert {row.verdict for row in rows} == {verdict}
    code, out = diff(monkeypatch, capsys, model, b)
    assert code == (verdict != HEALTHY)
    assert {HEALTHY: "requantised f16 -> i8", TWICE: "  by 2", UNTOLD: "groups of 256 (ConvRot)"}[verdict] in out


def test_the_same_codes_rotated_and_not_are_not_the_same(tmp_path):
    w = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    codes, scale = int8_scaled.quantize(w)
    files = []
    for rotated in (False, True):
        told = json.dumps({"format": "int8_tensorwise", "convrot": rotated}).encode()
        of = {"x.weight": codes, "x.weight_scale": scale[:, None], "x.comfy_quant": np.frombuffer(told, np.uint8)}
        files.append(save(tmp_path / f"{rotated}.safetensors", {name: stored(t) for name, t in of.items()}))
    (row,) = compare(*files)
    assert row.verdict == "rotated"


@pytest.mark.parametrize("family", ["zimage", "sd15", "flux-dev"])
def test_a_folder_is_the_same_as_the_file(family, tmp_path):
    recipe = ModelRecipe(family, "f16", True)
    folder = recipes.make(recipe, tmp_path / "folder", "diffusers")
    rows = compare(folder, recipes.make(recipe, tmp_path / "a.safetensors"))
    assert {row.verdict for row in rows} == {"same"}
    assert len(rows) == sum(map(len, recipes.shapes(recipe).values()))


def diff(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["refsd", "diff", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        main()
    return exit.value.code or 0, capsys.readouterr().out


def test_the_command(model, tmp_path, monkeypatch, capsys):
    of = tensors(model)
    del of[OUT]
    of["more"] = stored(np.ones(3, np.float32))
    lacking = save(tmp_path / "b.safetensors", of)
    code, out = diff(monkeypatch, capsys, model, lacking)
    assert code == 1
    assert f"missing     zimage: {OUT}" in out
    assert "extra       zimage: more" in out
    assert "    88 same f16" in out
    rows = json.loads(diff(monkeypatch, capsys, model, lacking, "--json")[1])
    assert [row["verdict"] for row in rows if row["name"] == "zimage: more"] == ["extra"]
    assert diff(monkeypatch, capsys, model, model)[0] == 0


def test_the_same_bytes_under_another_type(model, tmp_path):
    found = changed(model, tmp_path, OUT, lambda tensor: tensor._replace(type="bf16"))
    (row,) = found.values()
    assert row.verdict == "changed" and row.detail == "the same bytes, bf16 by the header and not f16"


@pytest.mark.parametrize(("prefix", "says"), [("net.", 'their names begin with "net."'), ("", "")])
def test_files_of_two_models_are_told_before_their_tensors(model, tmp_path, prefix, says):
    renamed = {f"{prefix}{name}": tensor for name, tensor in tensors(model).items()}
    other = save(tmp_path / "b.safetensors", renamed)
    lines = of_two_models(model, other)
    assert (lines and says in lines[1] and "Z-Image" in lines[0]) if says else not lines


def test_two_families_are_told_by_their_titles(model, tmp_path):
    other = recipes.make(ModelRecipe("sd15", "f16", True), tmp_path / "b.safetensors")
    assert [line.rpartition(": ")[2] for line in of_two_models(model, other)] == ["Z-Image", "Stable Diffusion 1.x"]
