"""Make recipe weights: a whole checkpoint in its real layout, drawn from seeds that are its tensors' names."""

import functools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refsd.families import FAMILIES
from refsd.files import comfy_writer
from refsd.files.stored import NamedTensors
from refsd.files.writers import Advance, Spec, write_gguf, write_safetensors
from refsd.golden.case import ModelRecipe
from refsd.golden.output_file import whole_folder, write_file
from refsd.golden.recipe import SCALE_FIELDS, Recipe, realize
from refsd.golden.wording import did_you_mean
from refsd.kernels.quant import BLOCK_TYPES
from refsd.models.catalogue import NETWORKS
from refsd.models.vae.latents import LATENT_SCALES
from refsd.networks.dimensions import Shape, Shapes
from refsd.networks.keymap import SAME, Source
from refsd.networks.recipe import RecipeModel, RecipePart
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

FLOAT_TYPES = ("f32", "f16", "bf16")
# nvfp4's scales span too few powers of two for a model's matrices; gguf-py does not write q2_0.
TYPES = (*FLOAT_TYPES, *(t for t in SCALE_FIELDS if t in BLOCK_TYPES and t not in ("nvfp4", "q2_0")))
# ComfyUI's, of several tensors a matrix: safetensors files in the original's layout.
COMFY_TYPES = tuple(comfy_writer.LAYOUTS)

# log2 of the standard deviation of "bell" at exponent 0
_BELL = math.log2(37837.2)

# Name endings of embedding tables: no matrix product sums their values, so their scale has no fan-in.
_TABLES = ("embedding.weight", "shared.weight", "embed_tokens.weight", "pos_embed", "_pad_token")

# T5 does not divide its attention scores by sqrt(64) = 2^3. Draw its query weights smaller by that factor, so that
# rounding errors do not grow with depth.
_UNSCALED = 3

# Substrings of names of the layers that compute shifts, scales and gates. Their weights ignore `quiet`: with a gate
# near zero a block would have no effect.
_CONDITIONING = (
    *("_mod.", "modulation", "distilled_guidance_layer."),
    *("time_in.", "vector_in.", "guidance_in.", "t_embedder.", "y_embedder.", "tmlp.", "tproj.", ".mod.lin"),
)

# Endings of vectors that scale: norms' weights, variances and deviations.
_ABOUT_ONE = (".weight", ".scale", ".running_var", ".gamma", ".std-of-means")

# Endings of norms' weights that a file holds less 1.
_LESS_ONE = ("prenorm.scale", "postnorm.scale", ".qnorm.scale", ".knorm.scale", "last.norm.scale", "txtmlp.0.scale")

# Substrings of names of matrices that stay f16 in a model of a block type.
_KEPT = (
    *("embedding", "time_embed.", "label_emb.", "img_in.", "txt_in.", "time_in.", "vector_in.", "guidance_in."),
    *("final_layer.", "x_embedder.", "t_embedder.", "y_embedder.", "context_embedder.", "pos_embed"),
    *("first.weight", "tmlp.", "tproj.", "txtmlp.", "txtfusion.projector.", "last."),
)


# Name -> model that `refsd weights make` writes: a whole checkpoint, or a single network if its real file is one.
MODELS: dict[str, RecipeModel] = {
    name: model for page in (*FAMILIES.values(), *NETWORKS.values()) for name, model in page.recipes.items()
}


def model_of(recipe: ModelRecipe) -> RecipeModel:
    """Return the entry of MODELS for a recipe's family. Raises BadInput for an unknown name."""
    if recipe.family not in MODELS:
        meant = did_you_mean(recipe.family, MODELS)
        raise BadInput(f"no recipe for family {recipe.family!r}{meant}; there are {', '.join(MODELS)}")
    return MODELS[recipe.family]


def size_of(model: ModelRecipe, component: str) -> Any:
    """Return the dimensions of a network in a recipe's model, a NamedTuple of its page in networks/.

    Raises BadInput for an unknown family or dimension.
    """
    parts = model_of(model).parts
    size = parts[component].tiny if model.tiny else parts[component].full
    dimensions: dict[str, Any] = {}
    for name, value in model.sizes or ():
        network, _, dimension = name.partition(".")
        if network not in parts or dimension not in parts[network].full._fields:
            known = [f"{part}.{field}" for part in parts for field in parts[part].full._fields]
            raise BadInput(f"{model.family} has no dimension {name}{did_you_mean(name, known)}")
        if network == component:
            dimensions[dimension] = value
    return size._replace(**dimensions)


def part_shapes(component: str, part: RecipePart, size: Any) -> Shapes:
    """Return the tensors of one component in a size: name in the file, with its prefix -> shape."""
    ours = NETWORKS[component].shapes(size)
    if part.keymap is None:
        return {part.prefix + name: shape for name, shape in ours.items()}
    theirs = part.keymap(size).write({name: _hollow("f32", shape) for name, shape in ours.items()})
    return {part.prefix + name: tensor.shape for name, tensor in theirs.items()}


def shapes(model: ModelRecipe) -> dict[str, Shapes]:
    """Return component -> name in the file -> shape. Raises BadInput for an unknown family or type."""
    parts = model_of(model).parts
    known = (*TYPES, *COMFY_TYPES)
    if model.type not in known:
        meant = did_you_mean(model.type, known)
        raise BadInput(f"no recipe weights of type {model.type!r}{meant}; there are {', '.join(known)}")
    return {component: part_shapes(component, part, size_of(model, component)) for component, part in parts.items()}


def tensor_recipe(name: str, shape: Shape, type: str, quiet: int = 0) -> Recipe:
    """Return the recipe of one weight, scaled so that activations keep their size through all layers.

    name:  full name in the original checkpoint; it is also the seed
    quiet: ModelRecipe.quiet
    """
    type = storage_type(name, shape, type)
    quiet = 0 if any(part in name for part in _CONDITIONING) else quiet
    if len(shape) == 1 or name.endswith(".gamma"):
        about_one = name.endswith(_ABOUT_ONE) and not name.endswith(_LESS_ONE)
        return Recipe(shape, type, exponent=-18 if about_one else -20 - quiet, offset=float(about_one))
    if name.endswith(_TABLES):
        return Recipe(shape, type, exponent=-20 - quiet)
    fan_in = math.prod(shape[1:])
    unscaled = _UNSCALED if name.endswith("SelfAttention.q.weight") else 0
    return Recipe(shape, type, exponent=round(-math.log2(fan_in) / 2 - _BELL) - unscaled - quiet)


def storage_type(name: str, shape: Shape, type: str) -> str:
    """Return the type in which a model of `type` stores one tensor.

    With a block type: that type for matrices whose rows are whole blocks, except embeddings and the first and last
    layers; f16 for the other matrices and for convolutions; f32 for vectors. With a type of ComfyUI f32 for what
    `comfy_layout` packs.
    Source: stable-diffusion.cpp, ModelLoader::tensor_should_be_converted.
    """
    if type in FLOAT_TYPES:
        return type
    if len(shape) == 1:
        return "f32"
    if type in COMFY_TYPES:
        return "f32" if comfy_layout(name, shape, type) else "f16"
    return type if is_matrix(name, shape, BLOCK_TYPES[type].block) else "f16"


def suffix(type: str) -> str:
    """Return the suffix of a file whose weights have this type."""
    return ".gguf" if type in BLOCK_TYPES else ".safetensors"


def comfy_layout(name: str, shape: Shape, type: str) -> comfy_writer.Layout | None:
    """Return how ComfyUI keeps a matrix of a model of `type`; None for what stays one tensor."""
    layout = comfy_writer.LAYOUTS.get(type)
    if layout is None or not name.endswith("weight") or not is_matrix(name, shape, layout.columns):
        return None
    return layout if shape[0] % layout.rows == 0 else None


def is_matrix(name: str, shape: Shape, block: int) -> bool:
    """True for a matrix of whole blocks that is no embedding and no first or last layer."""
    return len(shape) == 2 and shape[-1] % block == 0 and not any(part in name for part in _KEPT)


def recipes(model: ModelRecipe, component: str) -> dict[str, Recipe]:
    """Return the recipe of every tensor of a component, by its name in the file."""
    return _drawn(model, shapes(model)[component])


def all_recipes(model: ModelRecipe) -> dict[str, Recipe]:
    """Return the recipe of every tensor of a model's file, by name, in the file's order."""
    return {name: recipe for of in shapes(model).values() for name, recipe in _drawn(model, of).items()}


def _drawn(model: ModelRecipe, of: Shapes) -> dict[str, Recipe]:
    return {name: tensor_recipe(name, shape, model.type, model.quiet) for name, shape in of.items()}


@functools.cache
def size(model: ModelRecipe) -> int:
    """Return the size of all tensors in bytes."""
    return sum(spec.nbytes for spec in _specs(model, all_recipes(model)).values())


def make(model: ModelRecipe, path: Path, layout: str = "ldm", advance: Advance = lambda n: None) -> Path:
    """Write the model; the bytes are the same on every machine.

    path:    a file: safetensors, or GGUF where it ends in .gguf; with layout "diffusers" a folder
    layout:  "ldm": one file in the original's layout; "diffusers": a folder of components
    advance: called after each tensor with its number of bytes

    Raises BadInput for an unknown recipe or layout, and for a path that does not fit them.
    """
    path = Path(path)
    shapes(model)
    if layout not in _LAYOUTS:
        raise BadInput(f"unknown layout {layout!r}; there are {', '.join(_LAYOUTS)}")
    return _LAYOUTS[layout](model, path, advance)


def _make_file(model: ModelRecipe, path: Path, advance: Advance) -> Path:
    named = all_recipes(model)
    specs = _specs(model, named)
    if path.is_dir():
        raise BadInput(f"{path}: a folder; name a file, or write --layout diffusers")
    if path.suffix not in (".gguf", ".safetensors"):
        raise BadInput(f"{path}: recipe weights are written to .safetensors or .gguf; give the file such an ending")
    if path.suffix == ".gguf" and model.type in TYPES:
        write_gguf(path, specs, _realized(model, named), model_of(model).gguf, advance)
    elif path.suffix == ".gguf":
        raise BadInput(f"{path}: ComfyUI keeps {model.type} in safetensors only; name a .safetensors file")
    elif model.type in (*FLOAT_TYPES, *COMFY_TYPES):
        write_safetensors(path, specs, _realized(model, named), advance=advance)
    else:
        raise BadInput(f"{path}: {model.type} is kept in GGUF only; name a .gguf file")
    return path


def _specs(model: ModelRecipe, named: Mapping[str, Recipe]) -> dict[str, Spec]:
    """Return the tensors of the file, which of a matrix in few bits are several."""
    specs: dict[str, Spec] = {}
    for name, r in named.items():
        layout = comfy_layout(name, r.shape, model.type)
        specs |= comfy_writer.specs(name, r.shape, layout) if layout else {name: Spec(r.type, r.shape)}
    return specs


def _realized(model: ModelRecipe, named: Mapping[str, Recipe]) -> Iterator[StoredTensor]:
    for name, recipe in named.items():
        tensor, layout = realize(recipe, name), comfy_layout(name, recipe.shape, model.type)
        yield from comfy_writer.tensors(name, tensor.values(), layout) if layout else (tensor,)


def _make_folder(model: ModelRecipe, path: Path, advance: Advance) -> Path:
    if model.type not in FLOAT_TYPES:
        kept = "one file of ComfyUI's" if model.type in COMFY_TYPES else "GGUF"
        raise BadInput(
            f"{path}: a diffusers folder holds {', '.join(FLOAT_TYPES)}; {model.type} is kept in {kept} only"
        )
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path}: a file; --layout diffusers writes a folder")
    parts = model_of(model).parts
    without = [component for component in parts if NETWORKS[component].folder is None]
    if without:
        raise BadInput(f"{path}: diffusers has no {', '.join(without)}, and no folder for it: write a file")
    with whole_folder(path) as folder:
        for component, part in parts.items():
            _write_part(folder, model, component, part, advance)
        for file, content in model_of(model).folder_files.items():
            _write_json(folder / file, content)
    return path


def _write_part(folder: Path, model: ModelRecipe, component: str, part: RecipePart, advance: Advance) -> None:
    size, there = size_of(model, component), NETWORKS[component].folder
    assert there is not None
    named = recipes(model, component)
    sources = _sources(component, part, size, named)
    wanted = [name for name in sources if not name.startswith(there.drops or ("-",))]
    keymap, rows = there.layout.of_size(size), there.rows(size)
    if without := [name for name in wanted if keymap.theirs(name) is None]:
        raise BadInput(f"{folder}: diffusers has no {without[0]}, and no folder for it: write a file")

    def written(name: str, file: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        tensor = sources[name].read(file)
        split = rows(name, tensor.shape)
        return keymap.write({name: tensor}, {name: split} if split else None)

    hollow = {name: _hollow(recipe.type, recipe.shape) for name, recipe in named.items()}
    specs = {theirs: Spec(t.type, t.shape) for name in wanted for theirs, t in written(name, hollow).items()}
    made = _Made(named)
    tensors = (tensor for name in wanted for tensor in written(name, made).values())
    write_safetensors(folder / there.folder / there.file, specs, tensors, advance=advance)
    scale = _latent_scale(model.family) if component == "vae" else {}
    _write_json(folder / there.folder / "config.json", {**there.config(size), **scale})


def _latent_scale(family: str) -> dict[str, float]:
    scale = LATENT_SCALES[next(name for name, page in FAMILIES.items() if family in page.recipes)]
    return {"scaling_factor": scale.factor, "shift_factor": scale.shift}


def _sources(component: str, part: RecipePart, size: Any, named: Mapping[str, Recipe]) -> dict[str, Source]:
    """Return canonical name -> its tensors in the single file (names with prefix), in the original's order."""
    canonical = NETWORKS[component].shapes(size)
    if part.keymap is None:
        return {name: Source((part.prefix + name,), SAME) for name in canonical}
    found, _ = part.keymap(size).sources(name.removeprefix(part.prefix) for name in named)
    return {
        name: Source(tuple(part.prefix + theirs for theirs in found[name].names), found[name].rule)
        for name in canonical
    }


class _Made(NamedTensors):
    """Map names in the file to tensors, each made on access."""

    def __init__(self, named: Mapping[str, Recipe]):
        self._named = self.names = named

    def __getitem__(self, name: str) -> StoredTensor:
        return realize(self._named[name], name)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_file(path, (json.dumps(content, indent=2) + "\n").encode())


def _hollow(type: str, shape: Shape) -> StoredTensor:
    """Return a tensor of zeros whose data take one element of memory."""
    return StoredTensor(type, shape, np.broadcast_to(np.zeros((), SCALAR_TYPES[type]), shape))


_LAYOUTS = {"ldm": _make_file, "diffusers": _make_folder}
