"""Convert a picture's bytes to a network's input, and a network's picture to bytes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.kernels.pixel_shuffle import pixel_unshuffle
from refsd.pipelines.png import to_bytes
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, part

_RANGES = "-1..1", "0..1"


class PixelRule(NamedTuple):
    """The parts of the rule.

    colours: [..., 3] -> channels in the network's order
    shown:   bytes, range -> numbers in the range
    blocks:  [N, C, H, W], factor -> [N, C factor^2, H / factor, W / factor]: space to depth
    back:    the network's numbers, range -> numbers in -1..1
    bytes:   [1, 3, H, W] in -1..1 -> bytes [H, W, 3]
    """

    colours: Callable[[np.ndarray], np.ndarray] = lambda pixels: pixels
    shown: Callable[[np.ndarray, str], np.ndarray] = lambda pixels, range_: (
        pixels / 255 if range_ == "0..1" else pixels / 255 * 2 - 1
    )
    blocks: Callable[[np.ndarray, int], np.ndarray] = lambda x, factor: (
        pixel_unshuffle(np.ascontiguousarray(x), factor) if factor > 1 else x
    )
    back: Callable[[np.ndarray, str], np.ndarray] = lambda y, range_: y * 2 - 1 if range_ == "0..1" else y
    bytes: Callable[[np.ndarray], np.ndarray] = to_bytes


RULE = PixelRule()


def _run(rule: PixelRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    x = rule.shown(rule.colours(t["bytes"]).astype(inputs.dtype).transpose(0, 3, 1, 2), p["range"])
    back = rule.back(t["answer"], p["range"])
    return {
        "shown": rule.blocks(x, p["blocks"]),
        "bytes": np.stack([rule.bytes(one[None]) for one in back]),
    }


def _each(to_byte: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """to_byte: values of 0..255, not clipped -> bytes"""
    return lambda image: to_byte((image[0] + 1) * 127.5).transpose(1, 2, 0)


def _places_first(x: np.ndarray, factor: int) -> np.ndarray:
    """Order channels by place in the block, then by colour."""
    if factor == 1:
        raise NoDifference
    N, C, H, W = x.shape
    y = RULE.blocks(x, factor).reshape(N, C, factor * factor, H // factor, W // factor)
    return y.swapaxes(1, 2).reshape(N, -1, H // factor, W // factor)


def _columns_first(x: np.ndarray, factor: int) -> np.ndarray:
    if factor == 1:
        raise NoDifference
    N, C, H, W = x.shape
    y = RULE.blocks(x, factor).reshape(N, C, factor, factor, H // factor, W // factor)
    return y.swapaxes(2, 3).reshape(N, -1, H // factor, W // factor)


def _of_one_pixel(x: np.ndarray, factor: int) -> np.ndarray:
    """Repeat the first pixel of each block for all its places."""
    if factor == 1:
        raise NoDifference
    return np.repeat(x[:, :, ::factor, ::factor], factor * factor, axis=1)


def _case(label: str, blocks: int = 1, range_: str = "-1..1"):
    # Some of the network's numbers lie outside the range, so that bytes are clipped.
    inputs = {
        "bytes": Recipe((2, 6, 10, 3), "i32", data="token_ids", exponent=0, n=256),
        "answer": Recipe((2, 3, 6, 10), exponent=-16, offset=0.0625),
    }
    return case("pixels", label, inputs, blocks=blocks, range=range_)


STAGES = (
    Stage(
        "pixels",
        "Bytes of a picture as a network is shown them, and a network's picture as bytes.",
        inputs={"bytes": "[N, H, W, 3]: red, green, blue", "answer": "[N, 3, H, W]: the network's"},
        params={"range": REQUIRED, "blocks": 1},
        outputs={
            "shown": Output(("item", "channel", "row", "column"), lambda inputs, truth: 2 + np.abs(truth), 4),
            "bytes": Output(("item", "row", "column", "colour")),
        },
        rule=RULE,
        choices={"range": _RANGES},
        run=_run,
        known=(
            part("blue first", colours=lambda pixels: pixels[..., ::-1]),
            part("0 to 1", shown=lambda pixels, range_: pixels / 255),
            part("-1 to 1", shown=lambda pixels, range_: pixels / 255 * 2 - 1),
            part("bytes over 256", shown=lambda pixels, range_: RULE.shown(pixels, range_) * 255 / 256),
            part("bytes over 127.5, less 1 of 255", shown=lambda pixels, range_: (pixels - 127.5) / 128),
            part("bytes as they are", shown=lambda pixels, range_: pixels),
            part("colours behind the places of a block", blocks=_places_first),
            part("columns of a block before its rows", blocks=_columns_first),
            part("one pixel of a block for all", blocks=_of_one_pixel),
            part("the network's range taken for -1 to 1", back=lambda y, range_: y),
            part("the network's range taken for 0 to 1", back=lambda y, range_: y * 2 - 1),
            part("bytes cut off, not rounded", bytes=_each(lambda y: np.floor(np.clip(y, 0, 255)))),
            part("bytes not clipped", bytes=_each(lambda y: np.floor(y + 0.5).astype(np.int64) & 255)),
            part("times 256", bytes=_each(lambda y: np.clip(np.floor(y * 256 / 255 + 0.5), 0, 255))),
            part("blue written first", bytes=lambda image: to_bytes(image)[..., ::-1]),
            part("rows written in reverse", bytes=lambda image: to_bytes(image)[::-1]),
        ),
        cases=(_case("vae"), _case("unit", range_="0..1"), _case("esrgan-x2", 2, "0..1")),
    ),
)
