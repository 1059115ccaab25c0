"""Recipe weights: a whole checkpoint in its real layout, made from the names of its tensors."""

import functools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from refsd.golden.case import ModelRecipe
from refsd.golden.errors import BadInput
from refsd.golden.recipe import SCALE_FIELDS, Recipe, realize
from refsd.golden.tensor import SCALAR_TYPES, StoredTensor
from refsd.kernels.quant import BLOCK_TYPES
from refsd.weights import keymaps, recipe_models
from refsd.weights.architecture import Shape, Shapes
from refsd.weights.diffusers_folder import sd15_configs
from refsd.weights.recipe_models import part_shapes
from refsd.weights.writers import Advance, Spec, whole, write_gguf, write_safetensors

# Of the families that a diffusers folder can be made of.
FOLDERS = {"sd15": {"unet": "unet", "vae": "vae", "clip": "text_encoder"}}
KEYMAPS = {"unet": keymaps.unet, "vae": keymaps.vae, "clip": keymaps.clip}
FLOAT_TYPES = ("f32", "f16", "bf16")
# nvfp4's scales span too few powers of two for a model's matrices; gguf-py does not write q2_0.
TYPES = (*FLOAT_TYPES, *(t for t in SCALE_FIELDS if t in BLOCK_TYPES and t not in ("nvfp4", "q2_0")))

# log2 of the standard deviation of "bell" at exponent 0
_BELL = math.log2(37837.2)

# Looked up, not multiplied by: their values enter as they are.
_TABLES = ("embedding.weight", "shared.weight", "embed_tokens.weight", "pos_embed", "_pad_token")

# Parts of the names of matrices that stay f16 among blocks.
_KEPT = (
    *("embedding", "time_embed.", "label_emb.", "img_in.", "txt_in.", "time_in.", "vector_in.", "guidance_in."),
    *("final_layer.", "x_embedder.", "t_embedder.", "y_embedder.", "context_embedder.", "pos_embed"),
)


def shapes(model: ModelRecipe) -> dict[str, Shapes]:
    """component -> name in the file -> shape. Raises BadInput for an unknown family or type."""
    parts = recipe_models.model(model).parts
    if model.type not in TYPES:
        raise BadInput(f"no recipe weights of type {model.type!r}; there are {', '.join(TYPES)}")
    return {component: part_shapes(component, part, model.tiny) for component, part in parts.items()}


def tensor_recipe(name: str, shape: Shape, type: str) -> Recipe:
    """How one weight is drawn: so that activations keep their size through the whole depth.

    name: the full name in the original checkpoint, with which it is realised too
    """
    type = storage_type(name, shape, type)
    if len(shape) == 1:
        about_one = name.endswith((".weight", ".scale", ".running_var"))
        return Recipe(shape, type, exponent=-18 if about_one else -20, offset=float(about_one))
    if name.endswith(_TABLES):
        return Recipe(shape, type, exponent=-20)
    fan_in = math.prod(shape[1:])
    return Recipe(shape, type, exponent=round(-math.log2(fan_in) / 2 - _BELL))


def storage_type(name: str, shape: Shape, type: str) -> str:
    """What a tensor is stored as when the model is `type`.

    With a block type: matrices whose rows are whole blocks, but for embeddings and both ends of the network; the
    other matrices and the convolutions are f16, vectors f32.
    Source: stable-diffusion.cpp, ModelLoader::tensor_should_be_converted.
    """
    if type in FLOAT_TYPES:
        return type
    if len(shape) == 1:
        return "f32"
    kept = any(part in name for part in _KEPT)
    return type if len(shape) == 2 and not kept and shape[-1] % BLOCK_TYPES[type].block == 0 else "f16"


def recipes(model: ModelRecipe, component: str) -> dict[str, Recipe]:
    """Every tensor of a component, under its name in the file."""
    return {name: tensor_recipe(name, shape, model.type) for name, shape in shapes(model)[component].items()}


def all_recipes(model: ModelRecipe) -> dict[str, Recipe]:
    """Every tensor of a model's file, in its order."""
    parts = shapes(model)
    return {name: tensor_recipe(name, shape, model.type) for of in parts.values() for name, shape in of.items()}


def size(model: ModelRecipe) -> int:
    """Bytes of all tensors."""
    return sum(Spec(r.type, r.shape).nbytes for r in all_recipes(model).values())


def make(model: ModelRecipe, path: Path, layout: str = "ldm", advance: Advance = lambda n: None) -> Path:
    """Write the model, byte for byte the same at any time and on any machine.

    path:    a file: safetensors, or GGUF where it ends in .gguf; with layout "diffusers" a folder
    layout:  "ldm": one file in the original's layout; "diffusers": a folder of components
    advance: called with the number of bytes after each tensor

    Raises BadInput for a recipe, a layout or a path that does not do.
    """
    path = Path(path)
    shapes(model)
    if layout not in _LAYOUTS:
        raise BadInput(f"unknown layout {layout!r}; there are {', '.join(_LAYOUTS)}")
    return _LAYOUTS[layout](model, path, advance)


def _make_file(model: ModelRecipe, path: Path, advance: Advance) -> Path:
    named = all_recipes(model)
    specs = {name: Spec(r.type, r.shape) for name, r in named.items()}
    if path.is_dir():
        raise BadInput(f"{path}: a folder; name a file, or write --layout diffusers")
    if path.suffix == ".gguf":
        write_gguf(path, specs, _realized(named), recipe_models.model(model).gguf, advance)
    elif model.type in FLOAT_TYPES:
        write_safetensors(path, specs, _realized(named), advance=advance)
    else:
        raise BadInput(f"{path}: {model.type} is kept in GGUF only; name a .gguf file")
    return path


def _realized(named: dict[str, Recipe]) -> Iterator[StoredTensor]:
    return (realize(recipe, name) for name, recipe in named.items())


def _make_folder(model: ModelRecipe, path: Path, advance: Advance) -> Path:
    if model.type not in FLOAT_TYPES:
        raise BadInput(
            f"{path}: a diffusers folder holds {', '.join(FLOAT_TYPES)}; {model.type} is kept in GGUF only"
        )
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path}: a file; --layout diffusers writes a folder")
    if model.family not in FOLDERS:
        raise BadInput(
            f"{path}: no diffusers folder of {model.family}; there are {', '.join(FOLDERS)}: write a file"
        )
    parts = recipe_models.model(model).parts
    for component, folder in FOLDERS[model.family].items():
        ours = recipes(model, component)
        renamed = functools.partial(_renamed, KEYMAPS[component](), parts[component].prefix)
        hollow = [renamed(name, _hollow(recipe)) for name, recipe in ours.items()]
        specs = {theirs: Spec(tensor.type, tensor.shape) for theirs, tensor in hollow}
        tensors = (renamed(name, realize(recipe, name))[1] for name, recipe in ours.items())
        write_safetensors(path / folder / _WEIGHTS_FILE[component], specs, tensors, advance=advance)
    bare = {
        component: {name.removeprefix(parts[component].prefix): shape for name, shape in of.items()}
        for component, of in shapes(model).items()
    }
    for file, text in sd15_configs(bare).items():
        with whole(path / file) as part:
            part.write_text(text)
    return path


def _renamed(keymap: keymaps.Keymap, prefix: str, name: str, tensor: StoredTensor) -> tuple[str, StoredTensor]:
    """A tensor's name in a diffusers folder, and the tensor as it stands there."""
    source = keymap.theirs(name.removeprefix(prefix))
    assert source is not None, name
    (part,) = source.rule.split(tensor, tensor.shape[:1])
    return source.names[0], part


def _hollow(recipe: Recipe) -> StoredTensor:
    """A tensor that has a shape and no memory."""
    return StoredTensor(
        recipe.type, recipe.shape, np.broadcast_to(np.zeros((), SCALAR_TYPES[recipe.type]), recipe.shape)
    )


_WEIGHTS_FILE = {
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
    "clip": "model.safetensors",
}
_LAYOUTS = {"ldm": _make_file, "diffusers": _make_folder}
