"""Columns of the board: families of operations."""

from refsd.components import COMPONENTS
from refsd.golden.operations import OPERATIONS
from refsd.models.catalogue import NETWORKS


def _models(*kinds: str) -> tuple[str, ...]:
    """Return the operations of all components whose networks are of these kinds."""
    kind = {name: network.kind for name, network in NETWORKS.items()}
    return tuple(f"model/{name}" for name, one in COMPONENTS.items() if one.part and kind[one.part] in kinds)


# Families of single operations, as their pages name them.
_OPERATIONS = (
    *("convolution", "linear", "block types", "attention", "norms", "activations", "gates", "positions"),
    "adapters",
)
_TABLE = {
    "adapters": ("stage/adapter",),
    "text encoders": _models("text encoder"),
    "image encoders": _models("image encoder"),
    "UNets": ("model/unet", "model/controlnet"),
    "transformers": tuple(op for op in _models("denoiser") if op != "model/unet"),
    "autoencoders": _models("autoencoder", "upscaler"),
    "samplers": ("trajectory", "stage/sigmas", "stage/step_noise", "stage/noising", "stage/steps", "stage/calls"),
}
# What is in no family: operations that move or resample numbers, and stages of a pipeline.
_SHAPES, _STAGES = "shapes", "stages"
FAMILIES = tuple(dict.fromkeys((*_OPERATIONS, *_TABLE, _SHAPES, _STAGES)))
_FAMILY = {op: family for family, ops in _TABLE.items() for op in ops}


def family(op: str) -> str:
    """Return the family of an operation, one of FAMILIES."""
    if op in OPERATIONS:
        return OPERATIONS[op].family
    return _FAMILY.get(op) or (_STAGES if "/" in op else _SHAPES)
