"""refsd info names the culprit of a damaged file in its first line, and claims nothing of healthy files."""

import pytest
from damaged_files import DAMAGES, lora, save

from refsd.cli import main
from refsd.diagnosis.health import examine
from refsd.golden.case import ModelRecipe
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint, recipes
from refsd.weights.checkpoint import survey


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
@pytest.mark.parametrize("family", [family for family in recipes.MODELS if not family.endswith("-narrow")])
def test_nothing_is_claimed_of_a_healthy_file(family, kind, tmp_path):
    folder = kind == "diffusers"
    path = tmp_path / ("folder" if folder else "a.gguf" if kind == "q8_0" else "a.safetensors")
    try:
        recipes.make(ModelRecipe(family, "f16" if folder else kind, True), path, "diffusers" if folder else "ldm")
    except BadInput as error:
        assert "no folder for it" in str(error) or (kind == "q8_0" and "GGUF at most 4" in str(error))
        return
    assert examine(survey(path), whole=True).findings == []


@pytest.mark.parametrize(("rank", "alpha"), [(8, 8.0), (128, 1.0), (16, 32.0)])
def test_nothing_is_claimed_of_a_healthy_adapter(rank, alpha, tmp_path):
    path = save(tmp_path / "a.safetensors", lora(rank, alpha))
    health = examine(survey(path))
    assert health.findings == []
    assert health.card is not None
    assert health.card.ranks == {rank: 6}
    assert health.card.scales == {round(alpha / rank, 6): 6}
    assert health.card.trainer == "kohya's sd-scripts, or one with its names"
