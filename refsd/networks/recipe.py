"""Models that recipe weights are made of: their networks in a size of the real model and a tiny one."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.networks.keymap import Keymap


class RecipePart(NamedTuple):
    """A network in a model's file.

    full, tiny: sizes of the network
    prefix:     what every name begins with
    keymap:     size -> our names <-> the file's behind the prefix; None: they are the same
    """

    full: Any
    tiny: Any
    prefix: str = ""
    keymap: Callable[[Any], Keymap] | None = None


class RecipeModel(NamedTuple):
    """
    parts:        component -> RecipePart, in the order of the file
    gguf:         a GGUF file's name for the architecture
    folder_files: JSON files of its diffusers folder, besides those of the components
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
    """A file of one network."""
    return RecipeModel({component: RecipePart(full, tiny, prefix, keymap)}, gguf)
