"""Models in few bits, written as ComfyUI's files keep them: read back, they are what the type makes of numbers."""

import numpy as np
import pytest
from damaged_files import save

from refsd.diagnosis.difference import compare
from refsd.files import comfy_writer
from refsd.files.formats import open_weights
from refsd.files.storage import storage_of
from refsd.golden.case import ModelRecipe
from refsd.golden.recipe import realize
from refsd.numerics.errors import BadInput
from refsd.weights import recipes

TYPES = recipes.COMFY_TYPES
SIZES = tuple((f"zimage.{name}", 1) for name in ("layers", "noise_refiners", "context_refiners"))


def model(type):
    return ModelRecipe("zimage", type, True, sizes=SIZES)


def packed(type):
    """The matrices that a type packs: few have rows of whole groups of 256."""
    return 5 if type in ("comfy-int8-convrot", "w4a8", "convrot-w4a4") else 18


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comfy")
    for type in ("f32", *TYPES):
        recipes.make(model(type), folder / f"{type}.safetensors")
    return folder


@pytest.mark.jitted
@pytest.mark.parametrize("type", TYPES)
def test_what_is_read_is_what_the_type_makes_of_the_numbers(folder, type):
    read, right = open_weights(folder / f"{type}.safetensors"), open_weights(folder / "f32.safetensors")
    assert set(read) == set(right) and not read.unexpanded
    names = [name for name in read if name in read.scalings]
    assert len(names) == packed(type)
    for name in names[:4]:
        want = storage_of(type).keep(right[name].values(), None)
        assert read[name].values().tobytes() == want.values().tobytes()
        assert read[name].coded == want.coded


@pytest.mark.jitted
@pytest.mark.parametrize("type", TYPES)
def test_another_type_is_no_damage(folder, type, tmp_path):
    """Each matrix is told as requantised; rows that were exchanged are told as changed."""
    rows = compare(folder / "f32.safetensors", folder / f"{type}.safetensors")
    kinds = {row.verdict for row in rows}
    assert kinds == {"same", "cast", "requantised"}
    assert sum(row.verdict == "requantised" for row in rows) == packed(type)
    held = dict(open_weights(folder / "f32.safetensors").items())
    name = "layers.0.feed_forward.w2.weight"
    wrong = held[name].values().copy()
    wrong[3:40] = wrong[3:40][::-1]
    held[name] = held[name]._replace(data=wrong)
    rows = compare(save(tmp_path / "a.safetensors", held), folder / f"{type}.safetensors")
    assert {row.name for row in rows if row.verdict == "changed"} == {f"zimage: {name}"}


def test_a_matrix_of_no_whole_blocks_stays_as_it_is():
    assert recipes.comfy_layout("a.weight", (32, 64), "mxfp8-w8a8") is not None
    assert recipes.comfy_layout("a.weight", (24, 64), "mxfp8-w8a8") is None
    assert recipes.comfy_layout("a.weight", (32, 48), "mxfp8-w8a8") is None
    assert recipes.comfy_layout("a.bias", (32,), "comfy-int8") is None
    assert recipes.comfy_layout("a.table", (32, 64), "comfy-int8") is None


def test_the_size_is_the_files():
    for type in TYPES:
        drawn = recipes.all_recipes(model(type))
        layers = sum(
            sum(spec.nbytes for spec in comfy_writer.specs(name, r.shape, layout).values())
            for name, r in drawn.items()
            if (layout := recipes.comfy_layout(name, r.shape, type))
        )
        plain = sum(
            realize(r, name).storable().nbytes
            for name, r in drawn.items()
            if not recipes.comfy_layout(name, r.shape, type)
        )
        assert recipes.size(model(type)) == layers + plain


def test_where_such_a_model_cannot_be_written(tmp_path):
    nvfp4 = model("nvfp4-w4a4")
    with pytest.raises(BadInput, match=r"a\.gguf: ComfyUI keeps nvfp4-w4a4 in safetensors only"):
        recipes.make(nvfp4, tmp_path / "a.gguf")
    with pytest.raises(BadInput, match="nvfp4-w4a4 is kept in one file of ComfyUI's only"):
        recipes.make(nvfp4, tmp_path / "a", "diffusers")


def test_scales_stand_in_tiles():
    from refsd.kernels.quant import grouped

    scales = np.arange(130 * 6, dtype=np.float32).reshape(130, 6)
    tiles = grouped.in_tiles(scales)
    assert tiles.shape == (256, 8) and (grouped.in_rows(tiles, 130, 6) == scales).all()
