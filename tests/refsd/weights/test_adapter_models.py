"""What an adapter file says of itself: its kind, whose layers it names, and whether refsd runs it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from refsd.models.catalogue import NETWORKS
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint, recipes
from refsd.weights.adapter_kinds import KINDS
from refsd.weights.adapter_models import MODELS, TITLES, survey_adapter
from refsd.weights.checkpoint import survey

PUBLISHED = np.load(Path(__file__).parents[2] / "fixtures" / "published_layouts.npz")
SD1 = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn"


def published(file):
    rows = [row.rsplit(" [", 1) for row in bytes(PUBLISHED[file]).decode().splitlines()]
    return {name: tuple(json.loads(f"[{shape}")) for name, shape in rows}


def lora(module, rows, columns, rank=4):
    return {
        f"{module}.lora_down.weight": (rank, columns),
        f"{module}.lora_up.weight": (rows, rank),
        f"{module}.alpha": (),
    }


@pytest.mark.parametrize("file", [name for name in PUBLISHED.files if "_lora_" in name])
def test_published_loras_are_flux1s(file):
    found = survey_adapter(published(file))
    assert (found.models[0], found.kind) == ("FLUX.1", "LoRA")
    assert found.runs and not found.unknown


def test_layers_of_another_size_are_not_flux1s():
    """Its names are FLUX.1's; 32 x 32 rows are not."""
    found = survey_adapter(published("flux_lokr_bfl_format"))
    assert (found.kind, found.models, found.runs) == ("LoKr", (), False)


@pytest.mark.parametrize(("columns", "model"), [(768, "Stable Diffusion 1.x"), (1024, "Stable Diffusion 2.x")])
def test_the_width_of_the_text_tells_sd1_from_sd2(columns, model):
    assert survey_adapter(lora(f"{SD1}2_to_k", 320, columns)).models == (model,)


def test_sdxl_by_its_depth():
    name = "lora_unet_down_blocks_2_attentions_0_transformer_blocks_9_attn2_to_k"
    assert survey_adapter(lora(name, 1280, 2048)).models == ("SDXL",)


def test_layers_that_several_models_have_are_several_models():
    found = survey_adapter(lora("lora_unet_double_blocks_0_img_attn_qkv", 9216, 3072))
    assert found.models == ("FLUX.1", "Chroma", "Chroma-Radiance", "FLUX.2 klein 4B")
    assert found.title == "a LoRA for FLUX.1, Chroma, Chroma-Radiance or FLUX.2 klein 4B"


def test_a_model_of_other_sizes_is_told_by_its_names():
    found = survey_adapter(lora("lora_unet_double_blocks_0_img_attn_qkv", 192, 64))
    assert found.models == () and not found.runs
    assert (
        found.title
        == "a LoRA for a model with the layers of FLUX.1, Chroma, Chroma-Radiance or others in other sizes"
    )
    assert found.unknown == ()
    shapes = lora("lora_unet_double_blocks_0_img_attn_qkv", 192, 64)
    misspelt = lora("lora_unet_double_blocks_0_img_atn_proj", 64, 64)
    shapes |= misspelt
    assert survey_adapter(shapes).unknown == (*misspelt,)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"lokr_w1": (2, 2), "lokr_w2": (160, 160)}, "LoKr"),
        ({"hada_w1_a": (320, 4), "hada_w1_b": (4, 320), "hada_w2_a": (320, 4), "hada_w2_b": (4, 320)}, "LoHa"),
        ({"lora_down.weight": (4, 320), "lora_up.weight": (320, 4), "dora_scale": (320, 1)}, "DoRA"),
        ({"oft_blocks": (4, 80, 80)}, "OFT"),
        ({"oft_blocks": (3, 4, 80, 80)}, "BOFT"),
        ({"a1.weight": (320, 4), "a2.weight": (4, 320), "b1.weight": (320, 4), "b2.weight": (4, 320)}, "GLoRA"),
        ({"lokr_w1": (2, 2), "lokr_w2": (160, 160), "dora_scale": (320, 1)}, "LoKr with DoRA"),
        ({"oft_R.weight": (10, 496), "oft_R.scaled_oft": ()}, "OFT"),
        ({"weight": (320,), "on_input": ()}, "IA3"),
        ({"diff": (320, 320)}, "full difference"),
    ],
)
def test_the_kind_is_told_by_its_parts(parts, kind):
    found = survey_adapter({f"{SD1}1_to_q.{part}": shape for part, shape in parts.items()})
    assert (found.kind, found.runs) == (kind, True)


# The parts of an adapter of a layer [O, I]; each O or I that is not the layer's must be seen.
SIZED = {
    "LoKr of low rank": lambda O, I: {"lokr_w1": (16, 16), "lokr_w2_a": (O // 16, 4), "lokr_w2_b": (4, I // 16)},
    "LoKr of two low ranks": lambda O, I: {
        "lokr_w1_a": (16, 2),
        "lokr_w1_b": (2, 16),
        "lokr_w2_a": (O // 16, 4),
        "lokr_w2_b": (4, I // 16),
    },
    "LoHa": lambda O, I: {
        "hada_w1_a": (O, 4),
        "hada_w1_b": (4, I),
        "hada_w2_a": (O, 4),
        "hada_w2_b": (4, I),
    },
    "GLoRA": lambda O, I: {"a1.weight": (I, 4), "a2.weight": (4, I), "b1.weight": (O, 4), "b2.weight": (4, I)},
    "OFT of LyCORIS": lambda O, I: {"oft_blocks": (O // 32, 32, 32)},
    "OFT of PEFT": lambda O, I: {"oft_R.weight": (I // 32, 496)},
    "BOFT of PEFT": lambda O, I: {"boft_R": (2, I // 32, 32, 32), "boft_s": (1, O)},
    "DoRA": lambda O, I: {"lora_A.weight": (4, I), "lora_B.weight": (O, 4), "dora_scale": (O, 1)},
    "full": lambda O, I: {"diff": (O, I)},
}


@pytest.mark.parametrize("kind", SIZED)
def test_every_kind_is_measured(kind):
    """FLUX.1's and FLUX.2 klein 4B's layers have the same names; linear1 and linear2 are of other sizes."""

    def models(linear1, linear2):
        layers = {"linear1": linear1, "linear2": linear2}
        return survey_adapter(
            {
                f"diffusion_model.single_blocks.{i}.{layer}.{part}": shape
                for i in range(2)
                for layer, size in layers.items()
                for part, shape in SIZED[kind](*size).items()
            }
        ).models

    assert models((27648, 3072), (3072, 12288)) == ("FLUX.2 klein 4B",)
    assert "FLUX.2 klein 4B" not in models((21504, 3072), (3072, 15360))
    assert "FLUX.1" in models((21504, 3072), (3072, 15360))
    assert models((21504, 4000), (4000, 15360)) in ((), models((21504, 3072), (4000, 15360)))


def test_textual_inversions_in_the_file_are_named_and_the_rest_runs():
    whole = lora(f"{SD1}2_to_k", 320, 768)
    found = survey_adapter({**whole, "bundle_emb.my v1.5 style.clip_l": (4, 768), "bundle_emb.b.clip_l": (1, 768)})
    assert found.runs and not found.unknown
    assert found.embeddings == ("my v1.5 style", "b")


def test_two_kinds_in_one_file():
    both = lora(f"{SD1}1_to_q", 320, 320) | {f"{SD1}1_to_k.lokr_w1": (2, 2), f"{SD1}1_to_k.lokr_w2": (160, 160)}
    assert survey_adapter(both).kind == "LoRA and LoKr"


def test_a_layer_that_no_model_has_and_a_part_that_is_missing():
    whole = lora(f"{SD1}1_to_q", 320, 320)
    found = survey_adapter({**whole, "lora_unet_another.lora_up.weight": (3, 1)})
    assert (found.runs, found.unknown) == (False, ("lora_unet_another.lora_up.weight",))
    whole.popitem()
    whole.pop(f"{SD1}1_to_q.lora_up.weight")
    found = survey_adapter(whole)
    assert not found.runs and found.unknown == (f"{SD1}1_to_q.lora_down.weight",)


@pytest.mark.parametrize("at", ["transformer.", "diffusion_model.", "lora_unet_", ""])
def test_qwen_image(at):
    """Diffusers', ComfyUI's and kohya's names, and Lightning's, which have no prefix."""
    dot = "_" if at.endswith("_") else "."
    found = survey_adapter(lora(f"{at}{dot.join(('transformer_blocks', '0', 'img_mod', '1'))}", 18432, 3072))
    assert found.models == ("Qwen-Image", "Qwen-Image-Layered") and found.runs


@pytest.mark.parametrize("at", ["transformer.", "diffusion_model.", "lora_unet_", ""])
@pytest.mark.parametrize(("part", "rows"), [("gate_up", 24576), ("gate_layer", 12288), ("proj", 12288)])
def test_qwen_image21(at, part, rows):
    """ComfyUI's fused matrix and diffusers' halves. FLUX.2 klein's attention has the same names and sizes."""
    dot = "_" if at.endswith("_") else "."
    found = survey_adapter(lora(at + dot.join(("transformer_blocks", "0", "img_mlp", part)), rows, 4096))
    assert found.models == ("Qwen-Image 2.1",) and found.runs
    attention = survey_adapter(lora(at + dot.join(("transformer_blocks", "0", "attn", "to_q")), 4096, 4096))
    assert attention.models == ("FLUX.2 klein 9B", "Qwen-Image 2.1")


def test_wan():
    found = survey_adapter(lora("diffusion_model.blocks.0.self_attn.q", 5120, 5120))
    assert found.models == ("Wan 14B", "Wan 14B, image to video") and found.runs


def test_a_model_that_refsd_does_not_have():
    found = survey_adapter(lora("diffusion_model.double_stream_blocks.0.block.attn1.to_q", 2560, 2560))
    assert found.models == () and not found.runs
    assert found.title == "a LoRA for no model that refsd knows"


@pytest.mark.parametrize(
    "family",
    [
        "sd15",
        "sd21",
        "sdxl",
        "sd3-medium",
        "flux-dev",
        "chroma",
        "flux2-dev",
        "flux3",
        "zimage",
        "lumina2",
        "wan",
        "qwen-image",
        "krea2",
        "ernie-image",
        "ideogram4",
        "minimax-h3",
        "ltx2",
        "qwen-image21",
    ],
)
def test_no_model_is_taken_for_an_adapter(family):
    parts = recipes.MODELS[family].parts
    names = [recipes.part_shapes(component, part, part.tiny) for component, part in parts.items()]
    assert all(survey_adapter(shapes) is None for shapes in names)


def test_every_kind_has_a_title():
    assert TITLES.keys() == KINDS.keys()


def test_every_network_that_adapters_name_has_a_model():
    assert {name for name, network in NETWORKS.items() if network.adapters} == {
        component for sizes in MODELS.values() for component in sizes
    }


def test_it_is_no_model_and_says_where_to_give_it(tmp_path):
    shapes = published("flux_lora_xlabs_format")
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, tmp_path / "a.safetensors")
    checkpoint = survey(tmp_path / "a.safetensors")
    assert checkpoint.family is None and not checkpoint.components
    with pytest.raises(BadInput, match=r"a LoRA for FLUX.1.* is no model: give it with --lora"):
        open_checkpoint(tmp_path / "a.safetensors")
