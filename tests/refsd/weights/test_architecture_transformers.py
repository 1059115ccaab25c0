"""Tables of the transformers: read back from themselves, whole, without a tensor, and out of order."""

import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsd.weights import architecture_chroma as chroma
from refsd.weights import architecture_flux as flux
from refsd.weights import architecture_zimage as zimage

few, dims = st.integers(1, 3), st.integers(1, 40)


class Table(NamedTuple):
    shapes: object
    read: object
    usual: object
    small: st.SearchStrategy


def sizes(cls, **given):
    """Every field of a size drawn, those not given from `dims`."""
    return st.builds(cls, **{name: given.get(name, dims) for name in cls._fields})


TABLES = {
    "flux": Table(
        flux.flux_shapes,
        flux.flux_size,
        flux.FLUX_DEV,
        sizes(flux.FluxSize, double_blocks=few, single_blocks=few, guidance=st.booleans()),
    ),
    "chroma": Table(
        chroma.chroma_shapes,
        chroma.chroma_size,
        chroma.CHROMA,
        sizes(chroma.ChromaSize, double_blocks=few, single_blocks=few, layers=few),
    ),
    "zimage": Table(
        zimage.zimage_shapes,
        zimage.zimage_size,
        zimage.ZIMAGE,
        sizes(zimage.ZImageSize, layers=few, noise_refiners=few, context_refiners=few),
    ),
}


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=30)
@given(data=st.data())
def test_read_back(name, data):
    table = TABLES[name]
    size = data.draw(table.small)
    shapes = table.shapes(size)
    assert table.read(shapes) == size
    assert table.read(dict(reversed(shapes.items()))) == size


@pytest.mark.parametrize("name", TABLES)
def test_one_missing_tensor_changes_nothing(name):
    table = TABLES[name]
    shapes = table.shapes(table.usual)
    for gone in list(shapes)[:40] + list(shapes)[-4:]:
        assert table.read({n: s for n, s in shapes.items() if n != gone}) == table.usual, gone


@pytest.mark.parametrize("name", TABLES)
def test_nothing_is_the_usual_size(name):
    assert TABLES[name].read({}) == TABLES[name].usual


@pytest.mark.parametrize("shape", [(), (0,), (0, 0, 0, 0), (2**60, 2**60), (1,) * 9])
@pytest.mark.parametrize("name", TABLES)
def test_hostile_shapes_make_no_large_table(name, shape):
    table = TABLES[name]
    usual = table.shapes(table.usual)
    found = table.read(dict.fromkeys(usual, shape))
    assert len(table.shapes(found)) <= len(usual)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("number", ["9999999999", "-1", "", "\u0663", "1e9"])
def test_hostile_names_make_no_large_table(name, number):
    table = TABLES[name]
    usual = table.shapes(table.usual)
    names = {part.replace(".0.", f".{number}.", 1): shape for part, shape in usual.items() if ".0." in part}
    assert table.read(usual | names) == table.usual


@pytest.mark.parametrize(
    ("shapes", "size", "parameters"),
    [
        (flux.flux_shapes, flux.FLUX_DEV, 11_901_408_320),
        (flux.flux_shapes, flux.FLUX_SCHNELL, 11_891_178_560),
        (flux.flux_shapes, flux.FLUX_FILL, 11_902_391_360),
        (chroma.chroma_shapes, chroma.CHROMA, 8_899_983_424),
        (zimage.zimage_shapes, zimage.ZIMAGE, 6_154_908_736),
    ],
)
def test_parameters(shapes, size, parameters):
    assert sum(math.prod(shape) for shape in shapes(size).values()) == parameters
