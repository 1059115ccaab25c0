"""The vote on a size: no single tensor misleads it."""

import time

import numpy as np
import pytest
from damaged_files import save

from refsd.diagnosis.health import examine
from refsd.models.catalogue import NETWORKS
from refsd.numerics.tensor import stored
from refsd.weights.checkpoint import survey
from refsd.weights.recipes import MODELS
from refsd.weights.size_vote import block, published, tail, voted_size

DENOISERS = {
    "zimage": "zimage",
    "lumina2": "lumina2",
    "krea2": "krea2",
    "ernie-image": "ernie-image",
    "ideogram4": "ideogram4",
    "minimax-h3": "minimax-h3",
    "ltx2": "ltx2",
    "qwen-image21": "qwen-image21",
    "wan": "wan",
    "qwen-image": "qwen-image",
    "flux-dev": "flux",
    "flux3": "flux3",
    "sd35-medium": "mmdit",
    "clip-l": "clip",
    "sd15": "unet",
}


@pytest.mark.parametrize("family", DENOISERS)
def test_no_turned_or_odd_tensor_changes_the_size(family):
    component = DENOISERS[family]
    size = MODELS[family].parts[component].full
    shapes = NETWORKS[component].shapes(size)
    read = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] != shape[1]]
    for name in read[:: max(1, len(read) // 12)]:
        for shape in (shapes[name][::-1], (7, 9)):
            assert voted_size(component, shapes | {name: shape}) == size, (name, shape)


def test_the_others_decide_where_no_published_size_helps():
    size = MODELS["zimage"].parts["zimage"].tiny._replace(hidden=640, mlp=1536, layers=5)
    shapes = NETWORKS["zimage"].shapes(size)
    for name in ("layers.0.feed_forward.w1.weight", "x_embedder.weight", "layers.0.attention.q_norm.weight"):
        for shape in (shapes[name][::-1], (7, 9)):
            assert voted_size("zimage", shapes | {name: shape}) == size, (name, shape)


def test_a_foreign_block_makes_no_deeper_network():
    size = MODELS["zimage"].parts["zimage"].full
    shapes = NETWORKS["zimage"].shapes(size) | {"layers.47.attention.out.weight": (3840, 3840)}
    assert voted_size("zimage", shapes) == size


def test_every_recipe_is_published():
    for name, model in MODELS.items():
        for component, part in model.parts.items():
            assert part.full in [known.size for known in published(component)], name


def test_blocks():
    assert block("layers.3.a.1.weight") == ("layers", 3)
    assert block("x_embedder.weight") == ("x_embedder.weight", -1)
    assert tail("layers.3.a.1.weight") == "a.1.weight"
    assert tail("x_embedder.weight") == ""


def test_a_file_of_many_blocks_is_looked_at_in_linear_time(tmp_path):
    """Minutes, where each block is compared with every other. Two seconds of CPU here."""
    shapes = {f"layers.{i}.attention.qkv.weight": (1,) for i in range(9000)}
    arrays = {name: stored(np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    path = save(tmp_path / "a.safetensors", arrays)
    begun = time.process_time()
    assert examine(survey(path)).verdict == "broken"
    assert time.process_time() - begun < 10
