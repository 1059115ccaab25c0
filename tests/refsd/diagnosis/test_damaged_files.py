"""refsd info names the culprit of a damaged file in its first line, and claims nothing of healthy files."""

import json
import re

import numpy as np
import pytest
from damaged_files import DAMAGES, lora, save

from refsd.cli import main
from refsd.diagnosis.health import examine
from refsd.files.formats import open_weights
from refsd.golden.case import ModelRecipe
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint, recipes
from refsd.weights.checkpoint import survey
from refsd.weights.describe import describe


def info(monkeypatch, capsys, path):
    """-> exit code, first line of what is printed"""
    monkeypatch.setattr("sys.argv", ["refsd", "info", str(path)])
    with pytest.raises(SystemExit) as exit:
        main()
    out, err = capsys.readouterr()
    return exit.value.code or 0, (out or err).splitlines()[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_first_line_names_the_culprit(damage, tmp_path, monkeypatch, capsys):
    make, says, code = DAMAGES[damage]
    found, line = info(monkeypatch, capsys, make(tmp_path))
    for part in says:
        assert part in line
    assert found == code


STRUCTURE = ("transposed", "transposed in a GGUF", "swapped", "missing", "renamed", "integers", "foreign layers")


@pytest.mark.parametrize("damage", STRUCTURE)
def test_opening_the_model_names_the_same_culprit(damage, tmp_path):
    make, says, _ = DAMAGES[damage]
    path = make(tmp_path)
    with pytest.raises(BadInput) as refused:
        open_checkpoint(path)
    line = str(refused.value).removeprefix(f"{path}: ")
    assert "\n" not in line
    for part in says:
        assert part in line.partition(": the tensors do not fit")[0]


@pytest.mark.parametrize("kind", ["f16", "q8_0", "diffusers"])
@pytest.mark.parametrize(
    "family", [family for family in recipes.MODELS if not family.endswith(("-narrow", "-block"))]
)
def test_nothing_is_claimed_of_a_healthy_file(family, kind, tmp_path):
    folder = kind == "diffusers"
    path = tmp_path / ("folder" if folder else "a.gguf" if kind == "q8_0" else "a.safetensors")
    try:
        recipes.make(ModelRecipe(family, "f16" if folder else kind, True), path, "diffusers" if folder else "ldm")
    except BadInput as error:
        assert "no folder for it" in str(error) or (kind == "q8_0" and "GGUF at most 4" in str(error))
        return
    assert examine(survey(path), whole=True).findings == []


ROWS, BLOCKS = "rows", "blocks"


@pytest.mark.parametrize("scales", [ROWS, BLOCKS])
def test_scales_of_rows_and_blocks_are_expanded_and_not_blamed(scales, tmp_path, monkeypatch, capsys):
    path = recipes.make(ModelRecipe("qwen3-4b", "f32", True), tmp_path / "a.safetensors")
    tensors = dict(open_weights(path, mapped=False).items())
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        w = np.asarray(tensors[name].values())
        lines = w.reshape(len(w), 1, 1, -1) if scales == ROWS else w.reshape(len(w) // 32, 32, -1, 32)
        scale = np.abs(lines).max((1, 3), keepdims=True) / np.float32(448)
        tensors[name] = stored((lines / scale).reshape(w.shape).astype("float8_e4m3fn"))
        tensors[name + ("_scale" if scales == ROWS else "_scale_inv")] = stored(scale[:, 0, :, 0].copy())
    path = save(tmp_path / "b.safetensors", tensors)
    health = examine(survey(path), whole=True)
    assert health.findings == []
    code, line = info(monkeypatch, capsys, path)
    assert (code, line) == (0, str(path))
    found = describe(survey(path))
    assert not found["unexpanded"]
    assert found["components"].keys() == {"qwen3"}
    assert not any(found["components"]["qwen3"][kind] for kind in ("missing", "unused", "misshapen"))
    open_checkpoint(path)


@pytest.mark.parametrize(
    ("ends", "title"),
    [(("._data", "._scale"), None), (("_packed", "_scale"), "packed weights of compressed-tensors")],
)
def test_a_model_of_another_storage_under_other_names_is_not_blamed(ends, title, tmp_path, monkeypatch, capsys):
    path = recipes.make(ModelRecipe("flux2-klein", "f16", True), tmp_path / "a.safetensors")
    tensors = dict(open_weights(path, mapped=False).items())
    for name in [name for name in tensors if "blocks" in name and len(tensors[name].shape) == 2]:
        w = np.asarray(tensors.pop(name).values(), np.float32)
        scale = np.abs(w).max(axis=1, keepdims=True) / 127
        tensors[name + ends[0]] = stored(np.rint(w / scale).astype(np.int8))
        tensors[name + ends[1]] = stored(scale)
    path = save(tmp_path / "b.safetensors", tensors)
    assert info(monkeypatch, capsys, path)[0] == 0
    assert survey(path).foreign == title
    assert not describe(survey(path))["unexpanded"]


def test_an_untrained_controlnet_is_no_missing_download(tmp_path):
    path = recipes.make(ModelRecipe("controlnet", "f16", True), tmp_path / "a.safetensors")
    tensors = dict(open_weights(path, mapped=False).items())
    names = [
        name for name in tensors if any(part in name for part in ("zero_convs", "middle_block_out", "block.14"))
    ]
    ends = {name: stored(np.zeros(tensors[name].shape, np.float16)) for name in names}
    path = save(tmp_path / "b.safetensors", {n: t for n, t in tensors.items() if n not in ends} | ends)
    assert len(ends) > 20 and examine(survey(path)).findings == []


def test_zero_factors_side_by_side_are_no_missing_download(tmp_path):
    tensors = lora()
    ups = {name: stored(np.zeros(t.shape, np.float32)) for name, t in tensors.items() if "lora_up" in name}
    path = save(tmp_path / "a.safetensors", {n: t for n, t in tensors.items() if n not in ups} | ups)
    assert [finding.kind for finding in examine(survey(path)).findings] == ["idle"]


INVERSIONS = {
    "SDXL": ({"clip_l": (4, 768), "clip_g": (4, 1280)}, "4 vectors"),
    "Stable Diffusion 1.x": ({"emb_params": (2, 768)}, "2 vectors"),
    "Stable Diffusion 2.x": ({"<cat>": (1024,)}, "1 vector,"),
}


@pytest.mark.parametrize("model", INVERSIONS)
def test_a_textual_inversion_is_identified(model, tmp_path, monkeypatch, capsys):
    shapes, count = INVERSIONS[model]
    rng = np.random.default_rng(0)
    path = save(
        tmp_path / "a.safetensors", {n: stored(rng.standard_normal(s, np.float32)) for n, s in shapes.items()}
    )
    monkeypatch.setattr("sys.argv", ["refsd", "info", str(path)])
    with pytest.raises(SystemExit) as exit:
        main()
    assert not exit.value.code
    out = capsys.readouterr().out
    assert f"a textual inversion for {model}, {count}" in out and "--embd-dir" in out
    with pytest.raises(BadInput, match="is no model: give its folder with --embd-dir"):
        open_checkpoint(path)


def test_where_the_zeros_begin_and_end(tmp_path):
    """The findings' bytes are exact, from the last byte that is not zero to the next one."""
    path = DAMAGES["a part that is missing"].make(tmp_path)
    (finding,) = [one for one in examine(survey(path)).findings if one.kind == "zero"]
    start, stop = map(int, re.findall(r"\d+", finding.text)[:2])
    content = path.read_bytes()
    assert content[start - 1] and content[stop] and not any(content[start:stop])


def test_the_shard_whose_download_is_missing_is_named(tmp_path):
    path = recipes.make(ModelRecipe("zimage", "f16", True), tmp_path / "a.safetensors")
    tensors = dict(open_weights(path, mapped=False).items())
    shards = {"one.safetensors": list(tensors)[::2], "two.safetensors": list(tensors)[1::2]}
    for name, held in shards.items():
        zero = name.startswith("two")
        save(
            tmp_path / name,
            {n: stored(np.asarray(tensors[n].values()) * np.float16(not zero)) for n in held},
        )
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, held in shards.items() for name in held}}))
    (finding, *_) = [one for one in examine(survey(index)).findings if one.kind == "zero"]
    assert finding.text.startswith("two.safetensors: all 44 tensors are zero")


def test_no_swap_between_equal_shapes(tmp_path):
    findings = examine(survey(DAMAGES["folded"].make(tmp_path))).findings
    assert [one.kind for one in findings] == ["folded"]


@pytest.mark.parametrize(("rank", "alpha"), [(8, 8.0), (128, 1.0), (16, 32.0)])
def test_nothing_is_claimed_of_a_healthy_adapter(rank, alpha, tmp_path):
    path = save(tmp_path / "a.safetensors", lora(rank, alpha))
    health = examine(survey(path))
    assert health.findings == []
    assert health.card is not None
    assert health.card.ranks == {rank: 6}
    assert health.card.scales == {round(alpha / rank, 6): 6}
    assert health.card.trainer == "kohya's sd-scripts, or one with its names"


def test_an_alpha_that_few_layers_lack_is_lost(tmp_path):
    tensors = lora(8, 4.0)
    first = next(name for name in tensors if name.endswith(".alpha"))
    path = save(tmp_path / "a.safetensors", {name: y for name, y in tensors.items() if name != first})
    (finding,) = examine(survey(path)).findings
    layer = first.removesuffix(".alpha")
    assert finding.text == f"no alpha: {layer} counts 1, the 5 other layers 0.5"
    none = {name: y for name, y in tensors.items() if not name.endswith(".alpha")}
    assert examine(survey(save(tmp_path / "b.safetensors", none))).findings == []
