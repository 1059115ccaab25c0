"""UNets alone, with a ControlNet or an IP-Adapter: what their recipes write is what refsd reads."""

import pytest

from refsd.golden.case import ModelRecipe
from refsd.models.catalogue import NETWORKS
from refsd.weights import open_checkpoint, recipes
from refsd.weights.recipes import MODELS

pytestmark = pytest.mark.jitted

FOUND = {
    "sd15-inpaint": "sd15-inpaint",
    "pix2pix": "sd15-edit",
    "sd15-control": "sd15",
    "sd15-ip-adapter": "sd15",
    "tiny-sd": "sd15",
    "sdxs-512": "sd15",
    "sdxs-09": "sd2",
    "sdxl-inpaint": "sdxl-inpaint",
    "ssd-1b": "sdxl",
    "vega": "sdxl",
}


@pytest.mark.parametrize("family", FOUND)
def test_a_recipes_unet_is_found_with_its_shapes(tmp_path, family):
    """Behind the numbers with gaps of tiny SD too."""
    model = ModelRecipe(family, "f16", tiny=True)
    checkpoint = open_checkpoint(recipes.make(model, tmp_path / "a.safetensors"))
    assert checkpoint.family is not None and checkpoint.family.name == FOUND[family]
    parts = MODELS[family].parts
    assert checkpoint.components.keys() == parts.keys()
    for component, held in checkpoint.components.items():
        want = NETWORKS[component].shapes(parts[component].tiny)
        assert {name: tensor.shape for name, tensor in held.weights.items()} == want


def test_tiny_sds_files_have_gaps():
    names = recipes.all_recipes(ModelRecipe("tiny-sd", tiny=True))
    at = "model.diffusion_model."
    assert f"{at}input_blocks.3.0.op.weight" in names and not any(
        n.startswith(f"{at}input_blocks.2.") for n in names
    )
    assert f"{at}output_blocks.2.1.conv.weight" in names and f"{at}output_blocks.3.1.norm.weight" in names
