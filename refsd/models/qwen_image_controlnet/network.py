"""Qwen-Image's ControlNet: sizes, tensors, names in files."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from refsd.models.qwen_image.network import QwenImageSize, qwen_image_shapes
from refsd.models.qwen_image_controlnet import EMBEDDER, OUTPUTS
from refsd.networks.dimensions import Shape, Shapes, blocks, dim, linear, read_size
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, same
from refsd.networks.recipe import alone


class QwenImageControlSize(NamedTuple):
    """Dimensions of the ControlNet; the defaults are InstantX Union's. Those of Qwen-Image have the same names.

    hint: channels of the hint, of which a token has four each; 17 for the inpainting one, whose hint has a mask
    """

    hidden: int = 3072
    layers: int = 5
    head_dim: int = 128
    mlp: int = 12288
    in_channels: int = 64
    hint: int = 16
    context_dim: int = 3584
    frequencies: int = 256


QWEN_IMAGE_CONTROL = QwenImageControlSize()
_AROUND = ("img_in.weight", "txt_in.weight", f"{EMBEDDER}.weight")


def qwen_image_control_shapes(size: QwenImageControlSize) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers QwenImageControlNetModel."""
    own = {name: value for name, value in size._asdict().items() if name != "hint"}
    shapes = qwen_image_shapes(QwenImageSize(**own))
    shapes = {name: shape for name, shape in shapes.items() if not name.startswith(("norm_out.", "proj_out."))}
    for i in range(size.layers):
        shapes |= linear(f"{OUTPUTS}.{i}", size.hidden, size.hidden)
    return shapes | linear(EMBEDDER, 4 * size.hint, size.hidden)


def qwen_image_control_size(shapes: Mapping[str, Shape]) -> QwenImageControlSize:
    """Infer the size from shapes. Dimensions of missing tensors are InstantX Union's."""
    layers = blocks(shapes, "transformer_blocks.", QWEN_IMAGE_CONTROL.layers, _AROUND)
    hint = dim(shapes, f"{EMBEDDER}.weight", 1, 4 * QWEN_IMAGE_CONTROL.hint) // 4
    return read_size(QWEN_IMAGE_CONTROL, qwen_image_control_shapes, shapes, layers=layers, hint=hint)


def _config(size: QwenImageControlSize) -> dict[str, Any]:
    return {
        "_class_name": "QwenImageControlNetModel",
        "patch_size": 2,
        "in_channels": size.in_channels,
        "out_channels": size.in_channels // 4,
        "num_layers": size.layers,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "joint_attention_dim": size.context_dim,
        "axes_dims_rope": [16, 56, 56],
        "extra_condition_channels": 4 * size.hint - size.in_channels,
    }


def _has_txt_norm(shapes: Mapping[str, Shape]) -> bool:
    """Tell this ControlNet from FLUX.1's and Stable Diffusion 3's, which embed hints under the same name."""
    return any(name.endswith("txt_norm.weight") for name in shapes)


_NAMES = same("diffusers")
TINY_CONTROL = QwenImageControlSize(256, 2, mlp=1024, context_dim=128)

QWEN_IMAGE_CONTROL_NETWORK = Network(
    "qwen-image-controlnet",
    "Qwen-Image's ControlNet",
    "controlnet",
    qwen_image_control_size,
    qwen_image_control_shapes,
    places=(Location(_NAMES, ("control_model.", ""), (f"{EMBEDDER}.",), shaped=_has_txt_norm),),
    folder=Folder("", DIFFUSERS_FILE, _NAMES, _config),
    computed={"patch_size": (2,), "axes_dims_rope": ([16, 56, 56],), "attention_head_dim": (128,)},
    recipes={
        "qwen-image-controlnet": alone(
            "qwen-image-controlnet", QWEN_IMAGE_CONTROL, TINY_CONTROL, "qwen-image-controlnet"
        ),
    },
)
NETWORKS = (QWEN_IMAGE_CONTROL_NETWORK,)
