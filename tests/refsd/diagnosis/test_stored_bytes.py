"""Holes of zeros in a tensor, types that the header tells wrongly, autoencoders of another model."""

import numpy as np
import pytest
from damaged_files import save

from refsd.diagnosis.health import examine
from refsd.files.formats import open_weights
from refsd.golden.case import ModelRecipe
from refsd.numerics.tensor import stored
from refsd.weights import recipes
from refsd.weights.checkpoint import survey

CONV = "model.diffusion_model.output_blocks.5.0.in_layers.2.weight"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recipes.make(ModelRecipe("sd15", "f16", True), tmp_path_factory.mktemp("m") / "a.safetensors")


def said(path) -> list[str]:
    return [finding.text for finding in examine(survey(path)).findings]


@pytest.mark.parametrize(
    ("first", "length", "seen"), [(5000, 20_000, True), (0, 20_000, True), (3456, 6912, False)]
)
def test_zero_bytes_that_end_inside_a_row_are_a_hole(path, tmp_path, first, length, seen):
    """Whole rows of zeros are channels that somebody pruned, or unused words."""
    content = bytearray(path.read_bytes())
    at = open_weights(path).headers[CONV].offset + first
    content[at : at + length] = bytes(length)
    (tmp_path / "b.safetensors").write_bytes(content)
    found = said(tmp_path / "b.safetensors")
    assert any("in the middle of" in text and CONV in text and "download" in text for text in found) == seen


def test_a_matrix_without_rows_has_no_hole(path, tmp_path):
    tensors = {**open_weights(path), "empty.weight": stored(np.zeros((0, 8), np.float16))}
    assert not any("in the middle of" in text for text in said(save(tmp_path / "b.safetensors", tensors)))


@pytest.mark.parametrize("types", [("F16", "BF16"), ("BF16", "F16")])
@pytest.mark.parametrize("count", [1, 400])
def test_bytes_of_another_type_than_the_header_says(path, tmp_path, types, count):
    """Some tensors, or all: float16 read as bfloat16 all but vanishes, the reverse has no value near 0."""
    true, false = types
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:8], "little")
    if true == "BF16":
        wide = np.frombuffer(bytes(content[8 + size :]), np.float16).astype(np.float32).view(np.uint32)
        content[8 + size :] = (wide >> 16).astype(np.uint16).tobytes()
    header = content[8 : 8 + size].replace(b'"F16"', b'"' + true.encode() + b'"')
    at = header.index(CONV.encode()) if count == 1 else 0
    wrong = header[:at] + header[at:].replace(b'"' + true.encode() + b'"', b'"' + false.encode() + b'"', count)
    for name, of in (("right", header), ("wrong", wrong)):
        whole = len(of).to_bytes(8, "little") + of + content[8 + size :]
        (tmp_path / f"{name}.safetensors").write_bytes(whole)
    assert said(tmp_path / "right.safetensors") == []
    (text,) = (text for text in said(tmp_path / "wrong.safetensors") if "by the bytes" in text)
    assert f"{false.lower()} by the header, {'float16' if true == 'F16' else 'bfloat16'} by the bytes" in text
    assert text.startswith("1 tensor of another type" if count == 1 else "1")


def test_scales_near_one_are_no_bfloat16(tmp_path, path):
    tensors = dict(open_weights(path, mapped=False).items())
    near = 1 + 0.05 * np.random.default_rng(1).standard_normal(tensors[CONV].shape)
    save(tmp_path / "a.safetensors", tensors | {CONV: stored(near.astype(np.float16))})
    assert not [text for text in said(tmp_path / "a.safetensors") if "by the bytes" in text]


def test_an_autoencoder_of_another_model(tmp_path):
    """Each part is whole, but the decoder takes latents of 16 channels, and SDXL's have 4."""
    files = {}
    for family in ("sdxl", "flux-vae"):
        made = recipes.make(ModelRecipe(family, "f16", True), tmp_path / f"{family}.safetensors")
        files[family] = dict(open_weights(made, mapped=False).items())
    assert said(tmp_path / "sdxl.safetensors") == []
    kept = {name: w for name, w in files["sdxl"].items() if not name.startswith("first_stage_model.")}
    other = {f"first_stage_model.{name}": w for name, w in files["flux-vae"].items()}
    save(tmp_path / "both.safetensors", kept | other)
    first, *_ = said(tmp_path / "both.safetensors")
    assert first.startswith("an autoencoder of 16 channels, and the denoiser's latents have 4")


def test_one_network_of_several_under_another_prefix(tmp_path, path):
    old = "first_stage_model."
    renamed = {name.replace(old, "autoencoder."): w for name, w in open_weights(path, mapped=False).items()}
    save(tmp_path / "a.safetensors", renamed)
    first, *_ = said(tmp_path / "a.safetensors")
    assert 'renamed: their names begin with "autoencoder."; without it they are those of vae' in first
