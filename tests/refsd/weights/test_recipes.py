import hashlib
import json
import re

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from sd15_shapes import sd15_shapes

from refsd.golden.case import ModelRecipe
from refsd.golden.recipe import realize
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint, recipes

TINY = ModelRecipe("sd15", "f16", tiny=True)
# Of the whole file: a changed byte of any recipe weight is a line in CHANGELOG under Numerics.
TINY_SHA256 = "ff51d4d69d9b7b158182d797fe0fb234749ca765a87c8771fec77cd4edaf7c09"
UNET = "model.diffusion_model."
PREFIXES = {"unet": UNET, "vae": "first_stage_model.", "clip": "cond_stage_model.transformer."}

pytestmark = pytest.mark.jitted


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_tiny_file_is_these_bytes(tmp_path):
    path = recipes.make(TINY, tmp_path / "new" / "tiny.safetensors")
    assert sha256(path) == TINY_SHA256
    assert [p.name for p in path.parent.iterdir()] == ["tiny.safetensors"]
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor(UNET + "out.2.weight").dtype == np.float16
    checkpoint = open_checkpoint(path)
    assert (checkpoint.family and checkpoint.family.name, checkpoint.layout) == ("sd15", "ldm")
    assert set(checkpoint.components) == {"unet", "vae", "clip"}


@pytest.mark.parametrize("type", ["bf16", "q8_0", "q4_k"])
def test_gguf_holds_the_recipes(tmp_path, type):
    model = ModelRecipe("sd15", type, tiny=True)
    path = recipes.make(model, tmp_path / "a.gguf")
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    expected = recipes.all_recipes(model)
    assert list(tensors) == list(expected)
    for name in [*list(expected)[:40], "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc2.weight"]:
        tensor, recipe = tensors[name], expected[name]
        assert tensor.tensor_type.name.lower() == recipe.type
        assert tuple(tensor.shape[::-1]) == recipe.shape
        assert np.asarray(tensor.data).tobytes() == realize(recipe, name).data.tobytes(), name
    assert open_checkpoint(path).family.name == "sd15"
    if type == "q4_k":
        assert sha256(path) == sha256(recipes.make(model, tmp_path / "again.gguf"))


def test_a_diffusers_folder_holds_the_same_tensors(tmp_path):
    folder = recipes.make(TINY, tmp_path / "model", "diffusers")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.layout == "diffusers"
    for component, parts in checkpoint.components.items():
        expected = recipes.recipes(TINY, component)
        assert {PREFIXES[component] + name for name in parts.weights} == set(expected)
        for name in list(parts.weights)[::17]:
            full = PREFIXES[component] + name
            made = realize(expected[full], full)
            assert parts.weights[name].shape == made.shape
            assert parts.weights[name].data.tobytes() == made.data.tobytes(), name
    config = json.loads((folder / "unet" / "config.json").read_text())
    assert config["block_out_channels"] == [32, 64, 128, 128]
    assert config["cross_attention_dim"] == 128
    assert json.loads((folder / "text_encoder" / "config.json").read_text())["num_attention_heads"] == 2


@pytest.mark.parametrize(
    "family", ["sd35-medium", "flux-schnell", "chroma", "flux2-klein", "clip-l", "t5xxl", "qwen3-4b", "taesd"]
)
def test_every_family_has_a_diffusers_folder(tmp_path, family):
    """What is split, swapped and renamed there comes back as the one file has it."""
    model = ModelRecipe(family, "f16", tiny=True)
    file = open_checkpoint(recipes.make(model, tmp_path / "model.safetensors"))
    folder = open_checkpoint(recipes.make(model, tmp_path / "model", "diffusers"))
    assert folder.layout in ("diffusers", "transformers")
    assert folder.components.keys() == file.components.keys()
    for component, held in file.components.items():
        there = folder.components[component].weights
        assert set(there) == set(held.weights)
        for name, tensor in held.weights.items():
            assert there[name].data.tobytes() == tensor.data.tobytes(), name


@pytest.mark.parametrize(("family", "most"), [("sdxl", 10e6), ("sd21", 14e6), ("clip-g", 7e6), ("clip-h", 6e6)])
def test_small_files_are_small_and_are_still_what_they_are(tmp_path, family, most):
    """Narrow encoders of OpenCLIP's are told by their depth, and have its GELU; in a folder as well."""
    model = ModelRecipe(family, "f16", tiny=True)
    path = recipes.make(model, tmp_path / "model.safetensors")
    assert path.stat().st_size < most
    file, folder = open_checkpoint(path), open_checkpoint(recipes.make(model, tmp_path / "model", "diffusers"))
    assert file.family.name == folder.family.name == {"sd21": "sd2", "sdxl": "sdxl"}.get(family, "parts")
    assert set(file.components) == set(folder.components) == set(recipes.shapes(model))
    for component, held in file.components.items():
        config = dict(folder.components[component].config)
        assert held.config == config
    if family == "clip-h":
        assert file.components["clip"].config["hidden_act"] == "gelu"
    elif family != "sd21":
        assert file.components["clip_g"].config["hidden_act"] == "gelu"


def test_a_tiny_sdxl_fits_together():
    """What its encoders say is what its UNet takes, token for token: it can draw."""
    parts = recipes.MODELS["sdxl"].parts
    unet, clip, bigg = (parts[name].tiny for name in ("unet", "clip", "clip_g"))
    assert unet.context_dim == clip.hidden + bigg.hidden
    assert unet.label == bigg.projection + 6 * 256
    parts = recipes.MODELS["sd21"].parts
    assert parts["unet"].tiny.context_dim == parts["clip"].tiny.hidden
    assert clip.vocab == bigg.vocab == parts["clip"].tiny.vocab == 49408


def test_no_folder_without_a_peer(tmp_path):
    with pytest.raises(BadInput, match="diffusers has no esrgan"):
        recipes.make(ModelRecipe("esrgan", "f16", tiny=True), tmp_path / "a", "diffusers")


def test_what_a_block_type_packs():
    """As stable-diffusion.cpp converts: matrices of whole rows, but for embeddings and the time embedding."""
    types = {n: r.type for n, r in recipes.all_recipes(ModelRecipe("sd15", "q4_k")).items()}
    block = UNET + "input_blocks.{}.1.transformer_blocks.0."
    clip = "cond_stage_model.transformer.text_model."
    assert types[block.format(1) + "attn1.to_q.weight"] == "f16", "320 is not a multiple of 256"
    assert types[block.format(1) + "attn2.to_k.weight"] == "q4_k"
    assert types[block.format(7) + "attn1.to_q.weight"] == "q4_k"
    assert types[UNET + "input_blocks.1.0.emb_layers.1.weight"] == "q4_k"
    assert types[UNET + "time_embed.0.weight"] == types[UNET + "time_embed.2.weight"] == "f16"
    assert types[clip + "embeddings.token_embedding.weight"] == "f16"
    assert types[clip + "encoder.layers.3.mlp.fc2.weight"] == "q4_k"
    assert types[UNET + "input_blocks.0.0.weight"] == types[UNET + "input_blocks.1.1.proj_in.weight"] == "f16"
    assert {t for n, t in types.items() if n.endswith(".bias")} == {"f32"}
    assert types["first_stage_model.encoder.norm_out.weight"] == "f32"


def test_every_weight_keeps_the_size_of_its_input():
    for component, shapes in sd15_shapes().items():
        for name, shape in shapes.items():
            recipe = recipes.tensor_recipe(PREFIXES[component] + name, shape, "f32")
            if len(shape) > 1 and "embedding.weight" not in name:
                gain = 37837.2 * 2.0**recipe.exponent * np.sqrt(np.prod(shape[1:]))
                assert 2**-0.5 <= gain <= 2**0.5, name


def test_full_size_is_sd15s():
    assert sum(len(s) for s in recipes.shapes(ModelRecipe("sd15")).values()) == 686 + 248 + 196
    assert recipes.size(ModelRecipe("sd15", "f16")) == 2 * (859_520_964 + 83_653_863 + 123_060_480)


@pytest.mark.parametrize(
    ("model", "name", "layout", "says"),
    [
        (ModelRecipe("sd9"), "a.safetensors", "ldm", "no recipe for family 'sd9'"),
        (ModelRecipe("sd15", "q1_z"), "a.gguf", "ldm", "no recipe weights of type 'q1_z'"),
        (ModelRecipe("sd15", "q8_0", True), "a.safetensors", "ldm", "q8_0 is kept in GGUF only"),
        (ModelRecipe("sd15", "q8_0", True), "a", "diffusers", "q8_0 is kept in GGUF only"),
        (TINY, "a", "onnx", "unknown layout 'onnx'"),
        (TINY, ".", "ldm", "a folder; name a file"),
        (TINY, "file", "diffusers", "--layout diffusers writes a folder"),
        (TINY, "file/a.safetensors", "ldm", "its folder cannot be made"),
    ],
)
def test_what_cannot_be_made_is_one_line(tmp_path, model, name, layout, says):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match=re.escape(says)) as caught:
        recipes.make(model, tmp_path / name, layout)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_a_network_needs_of_single_tensors():
    """A variance is positive; T5, whose scores are not scaled, has queries an eighth as large as its keys."""
    assert (realize(recipes.tensor_recipe("bn.running_var", (512,), "f32"), "bn.running_var").values() > 0).all()
    q, k = (
        recipes.tensor_recipe(f"encoder.block.0.layer.0.SelfAttention.{name}.weight", (128, 64), "f32")
        for name in "qk"
    )
    assert q.exponent == k.exponent - 3


def test_quiet_weights_are_smaller_but_for_norms_and_modulations():
    loud, quiet = (recipes.all_recipes(ModelRecipe("flux-dev", tiny=True, quiet=n)) for n in (0, 6))
    for name, recipe in loud.items():
        stays = (
            "_mod." in name or "modulation" in name or "norm" in name or name.startswith(("time", "vec", "guid"))
        )
        assert recipe.exponent - quiet[name].exponent == (0 if stays else 6), name


def test_a_folder_that_is_not_finished_has_no_name(tmp_path):
    """Whatever interrupts it: its parts stand elsewhere until all of them are whole."""

    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recipes.make(TINY, tmp_path / "model", "diffusers", stop)
    assert list(tmp_path.iterdir()) == []
    recipes.make(TINY, tmp_path / "model", "diffusers")
    with pytest.raises(BadInput, match="model: exists; remove it"):
        recipes.make(TINY, tmp_path / "model", "diffusers")


def test_the_name_says_the_format(tmp_path):
    for name in ("a.npz", "a.bin", "a"):
        with pytest.raises(BadInput, match=rf"{name}: recipe weights are written to \.safetensors or \.gguf"):
            recipes.make(TINY, tmp_path / name)
