"""What refsd knows of a network, on one page each: sizes, tensors, layouts of files, config.json."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.dimensions import Shape, Shapes, count
from refsd.networks.keymap import Keymap, same_names
from refsd.networks.naming import Naming
from refsd.networks.recipe import RecipeModel

DIFFUSERS_FILE, TRANSFORMERS_FILE = "diffusion_pytorch_model.safetensors", "model.safetensors"
# The name of a tensor, and its shape -> how many rows each of the peer's parts of it has; None: equal ones.
Rows = Callable[[str, Shape], Sequence[int] | None]


class Layout(NamedTuple):
    """Names that a kind of file has, as against the original's.

    name:     "ldm", "original", "diffusers", "transformers", "llama.cpp"
    of_names: the names in a file, behind its prefix -> Keymap
    of_size:  the network's size -> Keymap
    """

    name: str
    of_names: Callable[[Collection[str]], Keymap]
    of_size: Callable[[Any], Keymap]


def counted(
    name: str, keymap: Callable[..., Keymap], usual: Mapping[str, int], numbers: Callable[[Any], tuple[int, ...]]
) -> Layout:
    """A layout whose keymap asks how many blocks of each kind there are.

    usual:   what their numbers follow in a name ("transformer_blocks.") -> how many there are where none is named
    numbers: size -> the same counts
    """
    return Layout(
        name,
        lambda names: keymap(*(count(names, prefix, n) for prefix, n in usual.items())),
        lambda size: keymap(*numbers(size)),
    )


def fixed(name: str, keymap: Callable[[], Keymap]) -> Layout:
    """A layout whose names do not depend on the size."""
    return Layout(name, lambda names: keymap(), lambda size: keymap())


def same(name: str) -> Layout:
    """The original's own names."""
    return fixed(name, lambda: same_names(()))


class Location(NamedTuple):
    """Where files keep a network: under one of `prefixes`, if some name there goes on with one of `witnesses`."""

    layout: Layout
    prefixes: tuple[str, ...]
    witnesses: tuple[str, ...]


class Folder(NamedTuple):
    """A network's place in a folder of diffusers.

    folder: in which its weights stand; "": they are the folder
    file:   its weights
    layout: their names
    config: size -> config.json; what shapes do not tell is as the released models have it
    rows:   size -> how a tensor is split, where not equally
    drops:  beginnings of names that the peer's class has not
    """

    folder: str
    file: str
    layout: Layout
    config: Callable[[Any], Mapping[str, Any]]
    rows: Callable[[Any], Rows] = lambda size: lambda name, shape: None
    drops: tuple[str, ...] = ()


# What networks do, in the order in which a checkpoint's are named.
KINDS = ("controlnet", "denoiser", "autoencoder", "text encoder", "upscaler")

# path of config.json (else of the weights), shapes, its content -> what the model needs besides weights
ReadConfig = Callable[[Path, Shapes, dict[str, Any]], dict[str, Any]]


class Network(NamedTuple):
    """
    name:     of the component of a checkpoint
    title:    for a person
    size:     name -> shape, of a file's tensors -> a NamedTuple; what is missing is as the family has it usually
    shapes:   that NamedTuple -> every tensor, in the order of the original file
    places:   where files keep it; the first that has a witness is taken
    folder:   its place in a folder of diffusers; None: they have no class for it
    computed: field of config.json -> the values that refsd computes; an absent field has the first
    config:   reads what shapes do not tell
    nested:   fields of config.json that hold further fields
    unread:   globs of names that the original's files may hold and its forward never reads
    kind:     what it does, one of KINDS
    before:   networks whose names its files have too: it is looked for before them
    adapters: what adapter files call its modules
    usual:    its size for an adapter whose checkpoint lacks it
    recipes:  models of it alone that recipe weights are made of, by name; a denoiser's are its family's
    """

    name: str
    title: str
    kind: str
    size: Callable[[Any], Any]
    shapes: Callable[[Any], Shapes]
    places: tuple[Location, ...] = ()
    folder: Folder | None = None
    computed: Mapping[str, tuple] = {}
    config: ReadConfig = lambda path, shapes, given: {}
    nested: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    adapters: tuple[Naming, ...] = ()
    usual: Any = None
    recipes: Mapping[str, RecipeModel] = {}


# Prefixes of a denoiser in a whole checkpoint, in ComfyUI's, alone; and in a folder's file.
DENOISER = ("model.diffusion_model.", "diffusion_model.", "")
FOLDER = ("transformer.", "")
