"""The models that recipe weights can be made of: their parts, full and tiny, under the names of the real files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.case import ModelRecipe
from refsd.golden.errors import BadInput
from refsd.golden.tensor import SCALAR_TYPES, StoredTensor
from refsd.weights.architecture import SD15, CLIPSize, UNetSize, VAESize
from refsd.weights.architecture_flux import FLUX_DEV, FLUX_FILL, FLUX_SCHNELL, FluxSize
from refsd.weights.architecture_zimage import ZIMAGE
from refsd.weights.architectures import ARCHITECTURES
from refsd.weights.keymaps import Keymap


class Part(NamedTuple):
    """A component in a model's file.

    full, tiny: sizes of its architecture
    prefix:     what stands before every name
    keymap:     ours <-> what the file has behind the prefix, where these differ
    """

    full: Any
    tiny: Any
    prefix: str = ""
    keymap: Callable[[Any], Keymap] | None = None


class Model(NamedTuple):
    """
    parts: component -> Part, in the order of the file
    gguf:  what a GGUF file calls the architecture
    """

    parts: dict[str, Part]
    gguf: str


_UNET, _VAE, _EMBEDDERS = "model.diffusion_model.", "first_stage_model.", "conditioner.embedders."
_TINY_CLIP = CLIPSize(hidden=128, layers=2, mlp=512)
_TINY_VAE = VAESize(channels=32)
_TINY_FLUX = FluxSize(hidden=256, double_blocks=1, single_blocks=2, mlp=1024, context_dim=128)

# family -> what `refsd weights make` writes; the diffusion model alone where the real file holds no more
MODELS: dict[str, Model] = {
    "sd15": Model(
        {
            "unet": Part(SD15, UNetSize(channels=32, context_dim=128), _UNET),
            "vae": Part(VAESize(), _TINY_VAE, _VAE),
            "clip": Part(CLIPSize(), _TINY_CLIP, "cond_stage_model.transformer."),
        },
        "sd1",
    ),
    "flux-dev": Model({"flux": Part(FLUX_DEV, _TINY_FLUX)}, "flux"),
    "flux-schnell": Model({"flux": Part(FLUX_SCHNELL, _TINY_FLUX._replace(guidance=False))}, "flux"),
    "flux-fill": Model({"flux": Part(FLUX_FILL, _TINY_FLUX._replace(in_channels=384))}, "flux"),
    "zimage": Model(
        {"zimage": Part(ZIMAGE, ZIMAGE._replace(hidden=384, layers=2, mlp=1024, context_dim=128))}, "lumina2"
    ),
}


def model(recipe: ModelRecipe) -> Model:
    """Raises BadInput for an unknown family."""
    if recipe.family not in MODELS:
        raise BadInput(f"no recipe for family {recipe.family!r}; there are {', '.join(MODELS)}")
    return MODELS[recipe.family]


def part_shapes(component: str, part: Part, tiny: bool) -> dict[str, tuple[int, ...]]:
    """Name in the file, with its prefix -> shape."""
    size = part.tiny if tiny else part.full
    ours = ARCHITECTURES[component].shapes(size)
    if part.keymap is None:
        return {part.prefix + name: shape for name, shape in ours.items()}
    theirs = part.keymap(size).write({name: _hollow(shape) for name, shape in ours.items()})
    return {part.prefix + name: tensor.shape for name, tensor in theirs.items()}


def _hollow(shape: tuple[int, ...]) -> StoredTensor:
    """A tensor that has a shape and hardly any memory."""
    return StoredTensor("f32", shape, np.broadcast_to(np.zeros((), SCALAR_TYPES["f32"]), shape))
