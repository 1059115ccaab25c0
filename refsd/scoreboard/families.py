"""Columns of the board: families of operations, and the operations of each."""

from refsd.components import COMPONENTS
from refsd.models.catalogue import NETWORKS


def _models(*kinds: str) -> tuple[str, ...]:
    """Return the operations of all components whose networks are of these kinds."""
    kind = {name: network.kind for name, network in NETWORKS.items()}
    return tuple(f"model/{name}" for name, one in COMPONENTS.items() if one.part and kind[one.part] in kinds)


_TABLE = {
    "convolution": ("conv2d", "conv3d", "im2col"),
    "linear": ("linear", "embedding"),
    "block types": ("dequantize",),
    "attention": ("attention", "attention_int8", "attention_softcap", "softmax"),
    "norms": (
        "group_norm",
        "group_norm_silu",
        "layer_norm",
        "adaptive_layer_norm",
        "rms_norm",
        "l2_norm",
        "rms_norm_channels",
        "batch_norm",
    ),
    "activations": ("silu", "gelu", "gelu_tanh", "quick_gelu", "sigmoid", "tanh", "relu", "leaky_relu"),
    "gates": ("add", "mul", "gated_add", "geglu", "swiglu", "swiglu_oai", "modulate"),
    "positions": ("rope", "sincos_positions", "timestep_embedding"),
    "adapters": ("lora", "lora_conv2d", "lokr", "lokr_conv2d", "stage/adapter"),
    "text encoders": _models("text encoder"),
    "image encoders": _models("image encoder"),
    "UNets": ("model/unet", "model/controlnet"),
    "transformers": tuple(op for op in _models("denoiser") if op != "model/unet"),
    "autoencoders": _models("autoencoder", "upscaler"),
    "samplers": ("trajectory", "stage/sigmas", "stage/step_noise", "stage/noising", "stage/steps", "stage/calls"),
}
# What is in no family: operations that move or resample numbers, and stages of a pipeline.
_SHAPES, _STAGES = "shapes", "stages"
FAMILIES = (*_TABLE, _SHAPES, _STAGES)
_FAMILY = {op: family for family, ops in _TABLE.items() for op in ops}


def family(op: str) -> str:
    """Return the family of an operation, one of FAMILIES."""
    return _FAMILY.get(op) or (_STAGES if "/" in op else _SHAPES)
