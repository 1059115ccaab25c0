"""The table of Chroma-Radiance's tensors against those that the original has."""

import json
import math

import numpy as np
import pytest
import tiny_radiance as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from refsd.models.chroma.network import ChromaSize
from refsd.models.chroma_radiance.network import (
    RADIANCE,
    RADIANCE_X0_32,
    RadianceSize,
    radiance_shapes,
    radiance_size,
)

few, dims = st.integers(1, 3), st.integers(1, 40)


@pytest.mark.parametrize("name", tiny.SIZES)
def test_the_original_s_tensors(name):
    there = {key: tuple(shape) for key, shape in tiny.recorded_shapes()[name].items()}
    size = radiance_size(there)
    config = tiny.SIZES[name]
    K, ratio, waves = config.field
    assert size.chroma == ChromaSize(
        hidden=config.heads * sum(config.axes),
        double_blocks=config.depths[0],
        single_blocks=config.depths[1],
        head_dim=sum(config.axes),
        mlp=4 * config.heads * sum(config.axes),
        context_dim=tiny.CONTEXT,
        width=24,
        layers=2,
    )
    assert size[1:] == (3, config.patch, K, ratio, config.depths[2], waves, config.linear, config.x0, config.twice)
    assert radiance_shapes(size) == there


def test_the_released_size():
    recorded = json.loads(str(np.load(tiny.RECORDED)["about"]))["parameters"]
    for size in (RADIANCE, RADIANCE_X0_32):
        assert sum(math.prod(shape) for shape in radiance_shapes(size).values()) == recorded


@settings(max_examples=30)
@given(
    trunk=st.builds(
        ChromaSize,
        hidden=dims,
        double_blocks=few,
        single_blocks=few,
        head_dim=dims,
        mlp=dims,
        in_channels=st.just(64),
        out_channels=st.just(64),
        context_dim=dims,
        width=dims,
        layers=few,
        waves=dims,
    ),
    fields=st.tuples(few, dims, dims, few, few, few, st.booleans(), st.booleans(), st.booleans()),
)
def test_read_back(trunk, fields):
    size = RadianceSize(trunk, *fields)
    shapes = radiance_shapes(size)
    assert radiance_size(shapes) == size
    assert radiance_size(dict(reversed(shapes.items()))) == size


def test_one_missing_tensor_changes_nothing():
    shapes = radiance_shapes(RADIANCE)
    assert radiance_size({}) == RADIANCE
    for gone in list(shapes)[:40] + list(shapes)[-22:]:
        assert radiance_size({n: s for n, s in shapes.items() if n != gone}) == RADIANCE, gone


@pytest.mark.parametrize("shape", [(), (0,), (0, 0, 0, 0), (2**60, 2**60), (1,) * 9])
def test_hostile_shapes_make_no_large_table(shape):
    usual = radiance_shapes(RADIANCE)
    assert len(radiance_shapes(radiance_size(dict.fromkeys(usual, shape)))) <= len(usual)


@pytest.mark.parametrize("number", ["9999999999", "-1", "", "\u0663", "1e9"])
def test_hostile_names_make_no_large_table(number):
    usual = radiance_shapes(RADIANCE)
    names = {part.replace(".0.", f".{number}.", 1): shape for part, shape in usual.items() if ".0." in part}
    assert radiance_size(usual | names) == RADIANCE
