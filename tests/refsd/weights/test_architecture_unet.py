"""Every published UNet's table, read back from itself; the counts are the published files'."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsd.models.unet.tensors import UNETS, UNetSize, unet_shapes, unet_size

COUNTS = {
    "sd15": 859_520_964,
    "sd15-inpaint": 859_535_364,
    "sd21": 865_910_724,
    "sdxl": 2_567_463_684,
    "sdxl-refiner": 2_259_526_660,
    "ssd-1b": 1_331_334_404,
    "vega": 745_225_604,
    "tiny-sd": 323_384_964,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters(name):
    assert sum(map(math.prod, unet_shapes(UNETS[name]).values())) == COUNTS[name]


@pytest.mark.parametrize("name", UNETS)
def test_read_back(name):
    shapes = unet_shapes(UNETS[name])
    assert unet_size(shapes) == UNETS[name]
    assert unet_shapes(unet_size(dict(reversed(shapes.items())))) == shapes


@st.composite
def small(draw):
    levels, res_blocks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    depths = st.lists(st.integers(0, 2), min_size=res_blocks, max_size=res_blocks).map(tuple)
    longer = st.lists(st.integers(0, 2), min_size=res_blocks + 1, max_size=res_blocks + 1).map(tuple)
    down = tuple(draw(depths) for _ in range(levels))
    size = UNetSize(
        channels=draw(st.integers(1, 9)),
        widths=tuple(draw(st.lists(st.integers(1, 39), min_size=levels, max_size=levels))),
        attention=tuple(level for level in range(levels) if any(down[level])),
        res_blocks=res_blocks,
        context_dim=draw(st.integers(40, 50)),
        in_channels=draw(st.integers(1, 9)),
        out_channels=draw(st.integers(1, 9)),
        linear=draw(st.booleans()),
        label=draw(st.integers(0, 9)),
        middle=draw(st.sampled_from([None, 0, 1, 3])),
        down=down,
        up=tuple(draw(longer) for _ in range(levels)),
    )
    return size._replace(cross_only=size.attention[:1] if draw(st.booleans()) else ())


@settings(max_examples=60)
@given(size=small())
def test_any_small_one_is_read_back(size):
    shapes = unet_shapes(size)
    assert unet_shapes(unet_size(shapes)) == shapes
    assert unet_size(unet_shapes(unet_size(shapes))) == unet_size(shapes)


@pytest.mark.parametrize(
    "name", ["sd21", "sdxl", "sdxl-refiner", "ssd-1b", "vega", "tiny-sd", "sdxs-512", "sdxs-09"]
)
def test_one_missing_tensor_changes_nothing(name):
    shapes = unet_shapes(UNETS[name])
    only_there = {"label_emb.0.0.weight"} if name == "sdxl-refiner" else set()
    for gone in {*list(shapes)[:40], *list(shapes)[-20:]} - only_there:
        assert unet_size({n: s for n, s in shapes.items() if n != gone}) == UNETS[name], gone


def test_nothing_is_sd15():
    assert unet_size({}) == UNetSize()


@pytest.mark.parametrize(
    "name",
    [
        "input_blocks.99.1.transformer_blocks.99.norm1.weight",
        "input_blocks.4.1.transformer_blocks.99999999.norm1.weight",
        "output_blocks.98.1.transformer_blocks.\u0663.attn2.to_k.weight",
        "middle_block.1.transformer_blocks.99.attn2.to_k.weight",
        "input_blocks.1.0.op.weight",
    ],
)
def test_one_hostile_name_makes_no_large_table(name):
    shapes = unet_shapes(UNETS["sd15"])
    for shape in ((), (2**60,) * 2, (0, 0)):
        assert len(unet_shapes(unet_size(shapes | {name: shape}))) < 10 * len(shapes)
