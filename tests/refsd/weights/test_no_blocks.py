"""Stacks of no blocks, read where all around them is there; config.json must say as many as the weights have."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.models.catalogue import NETWORKS
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint

# No tensor tells how wide these MLPs would be.
NO_BLOCK, NO_JOINT_BLOCK = {"double_blocks": 0, "single_blocks": 0, "mlp": 4 * 128}, {"blocks": 0, "mlp": 4 * 64}
# component -> family, how many blocks of each kind
SIZES = {
    "flux": ("flux-dev", {"double_blocks": 0}, {"single_blocks": 0}, NO_BLOCK),
    "chroma": ("chroma", {"double_blocks": 0}, {"single_blocks": 0}),
    "flux2": ("flux2-dev", {"double_blocks": 0}, {"single_blocks": 0}),
    "flux3": ("flux3", {"mode_blocks": 0}, {"single_blocks": 0}),
    "mmdit": ("sd3", NO_JOINT_BLOCK),
    "zimage": ("zimage", {"noise_refiners": 0, "context_refiners": 0}, {"layers": 0}),
}
CASES = [(component, fields) for component, (_, *rows) in SIZES.items() for fields in rows]
PREFIXES = {
    "mode_blocks": "txt_mode_blocks. content_mode_blocks.",
    "blocks": "joint_blocks.",
    "noise_refiners": "noise_refiner.",
    "context_refiners": "context_refiner.",
}


def sized(component, fields):
    return small.FAMILIES[SIZES[component][0]][component]._replace(**fields)


def in_a_folder(folder, component, size, arrays, **fields):
    """As diffusers keeps it."""
    home = NETWORKS[component].folder
    assert home is not None
    (folder / home.folder).mkdir(parents=True)
    save_file(small.written(component, "diffusers", size, arrays), folder / home.folder / home.file)
    (folder / home.folder / "config.json").write_text(json.dumps({**home.config(size), **fields}))
    return folder


@pytest.mark.parametrize(("component", "fields"), CASES)
def test_of_no_blocks(tmp_path, component, fields):
    size = sized(component, fields)
    arrays = small.weights(component, size)
    files = [in_a_folder(tmp_path / "folder", component, size, arrays)]
    if fields not in (NO_BLOCK, NO_JOINT_BLOCK):  # by which the original's names are known
        files.append(tmp_path / "a.safetensors")
        save_file(arrays, files[-1])
    for path in files:
        held = open_checkpoint(path).components[component]
        assert held.size == size
        assert all(np.array_equal(held.weights[name].values(), array) for name, array in arrays.items())


@pytest.mark.parametrize(("component", "fields"), CASES)
def test_what_lacks_more_than_its_blocks_lacks_them_too(tmp_path, component, fields):
    arrays = small.weights(component, sized(component, {}))
    lost = " ".join(PREFIXES.get(field, f"{field}.") for field in fields).split()
    part = {name: a for name, a in arrays.items() if not name.startswith((*lost, "final_layer."))}
    save_file(part, tmp_path / "a.safetensors")
    with pytest.raises(BadInput, match=r"missing: .*, \.\.\.|no model that refsd knows"):
        open_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize("refined", ["noise_refiner", "context_refiner"])
def test_one_stream_is_not_refined_alone(tmp_path, refined):
    arrays = small.weights("zimage", sized("zimage", {}))
    save_file({n: a for n, a in arrays.items() if not n.startswith(refined)}, tmp_path / "a.safetensors")
    with pytest.raises(BadInput, match=rf'missing: zimage "{refined}.0.'):
        open_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("component", "field", "says", "there"),
    [
        ("flux", "num_layers", 3, 2),
        ("flux", "num_single_layers", 1, 0),
        ("chroma", "approximator_layers", 1, 2),
        ("zimage", "n_refiner_layers", 2, 1),
        ("zimage", "n_layers", 1.5, 2),
        ("lumina2", "num_refiner_layers", 2, 1),
        ("flux3", "num_layers", 2, 1),
        ("flux3", "num_single_layers", "two", 0),
        ("krea2", "num_layerwise_text_blocks", "one", 1),
        ("krea2", "num_refiner_text_blocks", 3, 2),
        ("qwen-image21", "num_layers", 32, 2),
        ("mmdit", "num_layers", 24, 2),
        ("t5", "num_layers", 3, 2),
        ("clip", "num_hidden_layers", 12, 2),
        ("qwen3", "num_hidden_layers", "all", 3),
    ],
)
def test_config_s_number_of_blocks_is_the_weights(tmp_path, component, field, says, there):
    family = next(parts for parts in small.FAMILIES.values() if component in parts)
    size = family[component]
    if field == "num_single_layers":
        size = size._replace(single_blocks=0)
    arrays = small.weights(component, size)
    folder = in_a_folder(tmp_path, component, size, arrays, **{field: says})
    with pytest.raises(BadInput, match=rf"config.json: {field} is .*{says}.*; the weights have {there}$"):
        open_checkpoint(folder)
