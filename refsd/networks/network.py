"""Types that describe a network: sizes, tensors, layouts of files, config.json."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.dimensions import Shape, Shapes, count
from refsd.networks.keymap import Keymap, same_names
from refsd.networks.naming import Naming
from refsd.networks.recipe import RecipeModel

DIFFUSERS_FILE, TRANSFORMERS_FILE = "diffusion_pytorch_model.safetensors", "model.safetensors"
# (name, shape) of a tensor -> rows of each part that diffusers or transformers splits it into; None: equal parts.
Rows = Callable[[str, Shape], Sequence[int] | None]


class Layout(NamedTuple):
    """A naming scheme of files, and how its names map to the original's.

    name:     "ldm", "original", "diffusers", "transformers", "llama.cpp", ...
    of_names: names in a file, without their prefix -> Keymap
    of_size:  the network's size -> Keymap
    """

    name: str
    of_names: Callable[[Collection[str]], Keymap]
    of_size: Callable[[Any], Keymap]


def counted(
    name: str, keymap: Callable[..., Keymap], usual: Mapping[str, int], numbers: Callable[[Any], tuple[int, ...]]
) -> Layout:
    """Return a layout whose keymap depends on the number of blocks of each kind.

    usual:   prefix of the blocks' numbers in names ("transformer_blocks.") -> count to assume if no name has it
    numbers: size -> the same counts
    """
    return Layout(
        name,
        lambda names: keymap(*(count(names, prefix, n) for prefix, n in usual.items())),
        lambda size: keymap(*numbers(size)),
    )


def fixed(name: str, keymap: Callable[[], Keymap]) -> Layout:
    """Return a layout whose names do not depend on the size."""
    return Layout(name, lambda names: keymap(), lambda size: keymap())


def same(name: str) -> Layout:
    """Return a layout with the original's names."""
    return fixed(name, lambda: same_names(()))


class Location(NamedTuple):
    """Where files keep a network: under one of `prefixes`, if a name begins with it and one of `witnesses`.

    architectures: general.architecture of a GGUF or model_type of a config.json, one of which the file must have,
                   where names do not tell this network from another; (): any
    shaped:        shapes in the file -> True if they are this network's, where another has the same names
    """

    layout: Layout
    prefixes: tuple[str, ...]
    witnesses: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    shaped: Callable[[Mapping[str, Shape]], bool] = lambda shapes: True


class Folder(NamedTuple):
    """A network's place in a diffusers folder.

    folder: subfolder of its weights; "": the folder itself
    file:   name of the weight file
    layout: naming scheme of the tensors
    config: size -> content of config.json; what shapes do not reveal is as in the released models
    rows:   size -> how tensors are split that are not split equally
    drops:  prefixes of tensors that diffusers' or transformers' class does not have
    """

    folder: str
    file: str
    layout: Layout
    config: Callable[[Any], Mapping[str, Any]]
    rows: Callable[[Any], Rows] = lambda size: lambda name, shape: None
    drops: tuple[str, ...] = ()


# Kinds of network, in the order in which a checkpoint's components are listed.
KINDS = ("controlnet", "text conditioner", "denoiser", "autoencoder", "image encoder", "text encoder", "upscaler")

# (path of config.json, else of the weights; shapes; content of config.json) -> hyper-parameters of the network
ReadConfig = Callable[[Path, Shapes, dict[str, Any]], dict[str, Any]]


class Network(NamedTuple):
    """What refsd knows about a network.

    name:     name of its component in a checkpoint
    title:    name for messages
    size:     (tensor name -> shape) of a file -> NamedTuple of dimensions, the usual ones for missing tensors
    shapes:   that NamedTuple -> shapes of all tensors, in the order of the original file
    places:   where files keep it; the first place with a witness is taken
    folder:   its place in a diffusers folder; None: neither diffusers nor transformers has a class for it
    computed: field of config.json -> values that refsd supports; a missing field counts as the first
    config:   reads hyper-parameters that shapes do not reveal
    nested:   fields of config.json that hold further fields
    unread:   globs of tensor names that the original's files may hold and its forward never reads
    beside:   globs of tensor names that a whole file may hold beside it, and refsd never reads
    kind:     one of KINDS
    before:   networks whose tensor names also occur in this network's files; this network is tried before them
    adapters: naming schemes of its modules in adapter files
    usual:    size to assume for an adapter if the checkpoint lacks the network
    recipes:  name -> recipe model of this network alone; those of denoisers are on their family's page
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
    beside: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    adapters: tuple[Naming, ...] = ()
    usual: Any = None
    recipes: Mapping[str, RecipeModel] = {}


# Prefixes of a denoiser: in a whole checkpoint, in ComfyUI's file, in a file of its own; in a diffusers folder.
DENOISER = ("model.diffusion_model.", "diffusion_model.", "")
FOLDER = ("transformer.", "")
