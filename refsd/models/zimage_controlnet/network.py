"""Z-Image's Fun ControlNet: sizes, tensors, names in files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.zimage.network import BLOCK_NAMES, block_shapes
from refsd.models.zimage_controlnet import EMBEDDER, LAYERS, REFINER
from refsd.networks.config import shown_value
from refsd.networks.dimensions import Shape, Shapes, count, linear, read_size
from refsd.networks.keymap import Keymap, block_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, counted
from refsd.networks.recipe import alone
from refsd.numerics.errors import BadInput


class ZImageControlSize(NamedTuple):
    """Dimensions of the ControlNet; the defaults are version 1's.

    layers:   control blocks, evenly spaced among Z-Image's
    refiners: blocks that refine the hint; 0: the control blocks do (2.0)
    projects: True if the refiners are control blocks (2.1)
    channels: channels of a token of the hint, which is a patch
    time_dim: channels of Z-Image's time embedding
    """

    hidden: int = 3840
    layers: int = 6
    refiners: int = 2
    projects: bool = False
    head_dim: int = 128
    mlp: int = 10240
    channels: int = 64
    time_dim: int = 256


ZIMAGE_CONTROL = ZImageControlSize()
ZIMAGE_CONTROL_21 = ZImageControlSize(layers=15, projects=True, channels=132)


def zimage_control_shapes(size: ZImageControlSize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers ZImageControlNetModel."""
    D = size.hidden
    shapes = linear(EMBEDDER, size.channels, D)
    for stack, n, controls in ((LAYERS, size.layers, True), (REFINER, size.refiners, size.projects)):
        for i in range(n):
            at = f"{stack}.{i}"
            shapes |= block_shapes(at, D, size.head_dim, size.mlp)
            shapes |= linear(f"{at}.adaLN_modulation.0", size.time_dim, 4 * D)
            shapes |= linear(f"{at}.before_proj", D, D) if controls and i == 0 else {}
            shapes |= linear(f"{at}.after_proj", D, D) if controls else {}
    return shapes


def zimage_control_size(shapes: Mapping[str, Shape]) -> ZImageControlSize:
    """Infer the size from shapes. Dimensions of missing tensors are version 1's."""
    return read_size(
        ZIMAGE_CONTROL,
        zimage_control_shapes,
        shapes,
        layers=count(shapes, f"{LAYERS}.", ZIMAGE_CONTROL.layers),
        refiners=count(shapes, f"{REFINER}.", 0 if shapes else ZIMAGE_CONTROL.refiners),
        projects=f"{REFINER}.0.after_proj.weight" in shapes,
    )


def zimage_control_keymap(layers: int = 6, refiners: int = 2) -> Keymap:
    """Map our names, which within a block are Z-Image's single file's, to and from the files'."""
    rows = block_rows(layers, LAYERS, LAYERS, BLOCK_NAMES) + block_rows(refiners, REFINER, REFINER, BLOCK_NAMES)
    return Keymap(rows, rest_same=True)


def control_names(size: ZImageControlSize) -> Keymap:
    return zimage_control_keymap(size.layers, size.refiners)


def _config(size: ZImageControlSize) -> dict[str, Any]:
    every = 30 // size.layers
    modes = {(0, False): "control_layers", (size.refiners, True): "control_noise_refiner"}
    mode = modes.get((size.refiners, size.projects))
    heads = size.hidden // size.head_dim
    return {
        "_class_name": "ZImageControlNetModel",
        "all_patch_size": [2],
        "all_f_patch_size": [1],
        "control_in_dim": size.channels // 4,
        "control_layers_places": [every * i for i in range(size.layers)],
        "control_refiner_layers_places": [0, 1] if mode else None,
        "add_control_noise_refiner": mode,
        "dim": size.hidden,
        "n_refiner_layers": 2,
        "n_heads": heads,
        "n_kv_heads": heads,
        "norm_eps": 1e-05,
        "qk_norm": True,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Raise BadInput for control blocks that join Z-Image's at other places than every n-th and both refiners."""
    places = given.get("control_layers_places")
    n = zimage_control_size(shapes).layers
    every = places[1] if isinstance(places, list) and len(places) == n > 1 and type(places[1]) is int else 1
    if places is not None and places != [every * i for i in range(n)]:
        raise BadInput(f"{path}: control_layers_places is {shown_value(places)}; refsd computes every n-th block")
    refiners = given.get("control_refiner_layers_places")
    if refiners not in (None, [0, 1]):
        said = shown_value(refiners)
        raise BadInput(f"{path}: control_refiner_layers_places is {said}; refsd computes both refiners: [0, 1]")
    return {}


_NAMES = counted(
    "diffusers",
    zimage_control_keymap,
    {f"{LAYERS}.": ZIMAGE_CONTROL.layers, f"{REFINER}.": 0},
    lambda size: (size.layers, size.refiners),
)
TINY_CONTROL = ZImageControlSize(384, 2, 2, True, mlp=1024, channels=132)

ZIMAGE_CONTROL_NETWORK = Network(
    "zimage-controlnet",
    "Z-Image's ControlNet",
    "controlnet",
    zimage_control_size,
    zimage_control_shapes,
    places=(Location(_NAMES, ("control_model.", ""), ("control_all_x_embedder.",)),),
    folder=Folder("", DIFFUSERS_FILE, _NAMES, _config),
    computed={"all_patch_size": ([2],), "all_f_patch_size": ([1],), "qk_norm": (True,), "norm_eps": (1e-5,)},
    config=_read_config,
    recipes={
        "zimage-controlnet": alone(
            "zimage-controlnet",
            ZIMAGE_CONTROL,
            TINY_CONTROL._replace(projects=False, channels=64),
            "zimage-controlnet",
            keymap=control_names,
        ),
    },
)
NETWORKS = (ZIMAGE_CONTROL_NETWORK,)
