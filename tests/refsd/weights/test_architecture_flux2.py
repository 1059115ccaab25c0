"""Tables of FLUX.2: read back from themselves, whole, without a tensor, and hostile."""

import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsd.weights.architecture_flux2 import (
    FLUX2_DEV,
    FLUX2_KLEIN_4B,
    FLUX2_KLEIN_9B,
    Flux2Size,
    Flux2VAESize,
    MistralSize,
    flux2_shapes,
    flux2_size,
    flux2_vae_shapes,
    flux2_vae_size,
    mistral_shapes,
    mistral_size,
)

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
    "flux2": Table(
        flux2_shapes,
        flux2_size,
        FLUX2_DEV,
        sizes(Flux2Size, double_blocks=few, single_blocks=few, guidance=st.booleans()),
    ),
    "vae": Table(
        flux2_vae_shapes,
        flux2_vae_size,
        Flux2VAESize(),
        sizes(Flux2VAESize, res_blocks=few, channel_mult=st.lists(few, min_size=1, max_size=4).map(tuple)),
    ),
    "mistral": Table(
        mistral_shapes,
        mistral_size,
        MistralSize(),
        sizes(MistralSize, layers=few, head_dim=st.just(128), norm=st.booleans()),
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
    for gone in list(shapes)[:40] + list(shapes)[-8:]:
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
        (flux2_shapes, FLUX2_DEV, 32_223_281_152),
        (flux2_shapes, FLUX2_KLEIN_4B, 3_875_544_576),
        (flux2_shapes, FLUX2_KLEIN_9B, 9_078_581_248),
        (flux2_vae_shapes, Flux2VAESize(), 84_046_371),
        (mistral_shapes, MistralSize(), 22_901_314_560),
    ],
)
def test_parameters(shapes, size, parameters):
    assert sum(math.prod(shape) for shape in shapes(size).values()) == parameters


def test_a_file_that_ends_early_needs_no_norm():
    shapes = mistral_shapes(MistralSize(layers=30, norm=False))
    assert mistral_size(shapes) == MistralSize(layers=30, norm=False)
