"""Draw a random case of one block: a model of that block alone, with other widths, heads, tokens and data.

Nothing but the embedders and the last layer stands around the block. Every tap in it is judged on the engine's own
inputs there, so that no other block's error comes in. An engine answers it as it answers any model of its family.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from refsd.fuzzing.draw_models import bases, draw_of
from refsd.golden.case import Case, Dimension
from refsd.requests.random_case import RandomCase

BLOCK = "block/"
# Channels of contexts and pooled texts, at the limits of vectors and blocks.
_TEXTS = (8, 31, 32, 33, 48, 64, 96, 128, 200, 256, 257)

Dimensions = Mapping[str, Dimension]


class Block(NamedTuple):
    """A kind of block.

    op:       component that holds it
    families: recipe models of the corpus' cases to begin with
    size:     dimensions of a network with that block alone
    """

    op: str
    families: tuple[str, ...]
    size: Callable[[Random], Dimensions]


def draw_block(seed: int, op: str, number: int) -> RandomCase:
    """The random case of this seed, kind of block ("block/flux-double") and number. Raises BadInput."""
    block = BLOCKS[op.removeprefix(BLOCK)]

    def resized(random: Random) -> tuple[tuple[str, Dimension], ...]:
        return tuple(sorted(block.size(random).items()))

    return draw_of(block_bases(op), Random(f"{seed}/{op}/{number}"), (seed, op, number), resized)


def block_bases(op: str) -> list[Case]:
    """The corpus' cases from which those of a kind of block are made."""
    block = BLOCKS[op.removeprefix(BLOCK)]
    return [case for case in bases(block.op) if case.model is not None and case.model.family in block.families]


def blocks() -> list[str]:
    """All kinds of blocks: "block/unet-res", ..."""
    return [BLOCK + name for name in BLOCKS]


def _unet(transformers: bool) -> Callable[[Random], Dimensions]:
    """One res block on each side, with or without a transformer; heads are eight, or of 64 channels (SD 2, SDXL).

    The middle block is as deep as its level, or missing. Two levels bring the skip's convolution
    and both resamplings.
    """

    def size(random: Random) -> Dimensions:
        first, levels = 64 * random.randint(1, 3), random.choice((1, 1, 2))
        widths = (first, 64 * random.randint(1, 3))[:levels]
        depth = random.randint(1, 2) if transformers else 0
        return {
            "unet.channels": first,
            "unet.widths": widths,
            "unet.res_blocks": 1,
            "unet.context_dim": random.choice(_TEXTS),
            "unet.attention": (),
            "unet.down": ((depth,),) * levels,
            "unet.up": ((depth, depth),) * levels,
            "unet.middle": random.choice((depth, None)),
        }

    return size


def _mmdit(random: Random) -> Dimensions:
    """The last block has no output for the text, the one before it has; one of MMDiT-X may be first."""
    hidden = 64 * random.randint(1, 6)
    return {
        "mmdit.hidden": hidden,
        "mmdit.mlp": 4 * hidden,
        "mmdit.blocks": random.randint(1, 2),
        "mmdit.qk_norm": random.choice((0, 64)),
        "mmdit.dual": random.choice(((), (0,))),
        "mmdit.context_dim": random.choice(_TEXTS),
        "mmdit.pooled": random.choice(_TEXTS),
    }


def _flux(network: str, double: int, ratio: int = 4) -> Callable[[Random], Dimensions]:
    """One double or one single block of FLUX.1, FLUX.2 or Chroma, whose heads have 128 channels."""

    def size(random: Random) -> Dimensions:
        hidden = 128 * random.randint(1, 4)
        texts = ("context_dim", "pooled") if network == "flux" else ("context_dim",)
        return {
            f"{network}.hidden": hidden,
            f"{network}.mlp": ratio * hidden,
            f"{network}.double_blocks": double,
            f"{network}.single_blocks": 1 - double,
            **{f"{network}.{name}": random.choice(_TEXTS) for name in texts},
        }

    return size


def _zimage(layers: int) -> Callable[[Random], Dimensions]:
    """One layer, or one refiner of each stream; two heads at least, for the modulation has 256 channels."""

    def size(random: Random) -> Dimensions:
        hidden = 128 * random.randint(2, 4)
        return {
            "zimage.hidden": hidden,
            "zimage.mlp": 8 * hidden // 3,
            "zimage.layers": layers,
            "zimage.noise_refiners": 1 - layers,
            "zimage.context_refiners": 1 - layers,
            "zimage.context_dim": random.choice(_TEXTS),
        }

    return size


def _qwen_image(network: str) -> Callable[[Random], Dimensions]:
    def size(random: Random) -> Dimensions:
        hidden = 128 * random.randint(1, 4)
        return {
            f"{network}.hidden": hidden,
            f"{network}.mlp": 4 * hidden,
            f"{network}.layers": 1,
            f"{network}.context_dim": random.choice(_TEXTS),
        }

    return size


def _vae(attention: bool) -> Callable[[Random], Dimensions]:
    """One level of one res block; the middle block has two more, around the attention.

    At least 64 channels: of 32, a single pixel's group would be one number, whose norm is its rounding error.
    """

    def size(random: Random) -> Dimensions:
        width = 64 * random.randint(1, 3)
        return {"vae.channels": width, "vae.widths": (width,), "vae.res_blocks": 1, "vae.attention": attention}

    return size


_VAES = ("sd15", "flux-vae")
_UNETS = ("sd15", "sd21", "sdxl")
BLOCKS: dict[str, Block] = {
    "unet-res": Block("model/unet", _UNETS, _unet(False)),
    "unet-transformer": Block("model/unet", _UNETS, _unet(True)),
    "mmdit": Block("model/mmdit", ("sd3-medium", "sd35-medium", "sd35-large"), _mmdit),
    "flux-double": Block("model/flux", ("flux-dev", "flux-schnell", "flux-fill"), _flux("flux", 1)),
    "flux-single": Block("model/flux", ("flux-dev", "flux-schnell", "flux-fill"), _flux("flux", 0)),
    "flux2-double": Block("model/flux2", ("flux2-dev", "flux2-klein"), _flux("flux2", 1, 3)),
    "flux2-single": Block("model/flux2", ("flux2-dev", "flux2-klein"), _flux("flux2", 0, 3)),
    "chroma-double": Block("model/chroma", ("chroma",), _flux("chroma", 1)),
    "chroma-single": Block("model/chroma", ("chroma",), _flux("chroma", 0)),
    "zimage": Block("model/zimage", ("zimage",), _zimage(1)),
    "zimage-refiners": Block("model/zimage", ("zimage",), _zimage(0)),
    "qwen-image": Block("model/qwen-image", ("qwen-image", "qwen-image-edit-2511"), _qwen_image("qwen-image")),
    "qwen-image-layered": Block(
        "model/qwen-image-layered", ("qwen-image-layered",), _qwen_image("qwen-image-layered")
    ),
    "vae-decoder-res": Block("model/vae-decoder", _VAES, _vae(False)),
    "vae-decoder-attention": Block("model/vae-decoder", _VAES, _vae(True)),
    "vae-encoder-res": Block("model/vae-encoder", _VAES, _vae(False)),
    "vae-encoder-attention": Block("model/vae-encoder", _VAES, _vae(True)),
}
