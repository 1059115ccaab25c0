"""Describe models for recipe weights: their networks, each in the real model's size and a tiny one."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.networks.keymap import Keymap


class RecipePart(NamedTuple):
    """A network in a recipe model's file.

    full, tiny: sizes of the network
    prefix:     prefix of all its names in the file
    keymap:     size -> map between our names and the file's without prefix; None: they are the same
    """

    full: Any
    tiny: Any
    prefix: str = ""
    keymap: Callable[[Any], Keymap] | None = None


class RecipeModel(NamedTuple):
    """A model for recipe weights.

    parts:        component -> RecipePart, in the order of the file
    gguf:         name of the architecture in a GGUF file
    folder_files: path -> content of the JSON files of its diffusers folder, besides those of its components
    """

    parts: Mapping[str, RecipePart]
    gguf: str
    folder_files: Mapping[str, Mapping[str, Any]] = {}


def alone(
    component: str,
    full: Any,
    tiny: Any,
    gguf: str,
    prefix: str = "",
    keymap: Callable[[Any], Keymap] | None = None,
) -> RecipeModel:
    """Return a recipe model whose file holds a single network; arguments as in RecipePart and RecipeModel."""
    return RecipeModel({component: RecipePart(full, tiny, prefix, keymap)}, gguf)
