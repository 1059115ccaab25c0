"""Tables of all but Stable Diffusion's own networks: read back from themselves, whole or not, in any order."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsd.weights import architecture_chroma as chroma
from refsd.weights import architecture_controlnet as controlnet
from refsd.weights import architecture_esrgan as esrgan
from refsd.weights import architecture_flux as flux
from refsd.weights import architecture_flux2 as flux2
from refsd.weights import architecture_mmdit as mmdit
from refsd.weights import architecture_taesd as taesd
from refsd.weights import architecture_text as text
from refsd.weights import architecture_zimage as zimage
from refsd.weights.architecture import UNetSize

few, dims = st.integers(1, 3), st.integers(1, 40)


class Table(NamedTuple):
    shapes: Callable[..., dict[str, tuple[int, ...]]]
    read: Callable[..., Any]
    usual: Any
    small: st.SearchStrategy


def sizes(cls, **given):
    """Every field of a size drawn, those not given from `dims`."""
    return st.builds(cls, **{name: given.get(name, dims) for name in cls._fields})


def mmdits():
    def whole(size):
        return size._replace(dual=tuple(i for i in size.dual if i < size.blocks))

    some = st.sets(st.integers(0, 2)).map(lambda found: tuple(sorted(found)))
    return sizes(mmdit.MMDiTSize, blocks=few, qk_norm=st.sampled_from([0, 8]), dual=some).map(whole)


def t5s():
    """One layer cannot tell where its table would be."""
    return sizes(text.T5Size, layers=st.integers(2, 3), table_in_every_layer=st.booleans())


COPIED = UNetSize(4, (1, 2), (1,), 1, 6), UNetSize(3, (1, 3, 2), (0, 2), 2, 5, linear=True)

TABLES = {
    "mmdit": Table(mmdit.mmdit_shapes, mmdit.mmdit_size, mmdit.SD3_MEDIUM, mmdits()),
    "t5": Table(text.t5_shapes, text.t5_size, text.T5_XXL, t5s()),
    "qwen3": Table(text.qwen3_shapes, text.qwen3_size, text.QWEN3_4B, sizes(text.Qwen3Size, layers=few)),
    "esrgan": Table(
        esrgan.esrgan_shapes,
        esrgan.esrgan_size,
        esrgan.ESRGAN_X4,
        sizes(esrgan.ESRGANSize, blocks=few, ups=st.integers(0, 2)),
    ),
    "taesd": Table(
        taesd.taesd_shapes,
        taesd.taesd_size,
        taesd.TAESD,
        sizes(
            taesd.TAESDSize,
            blocks=st.lists(few, min_size=1, max_size=4).map(tuple),
            pool=st.integers(0, 5),
            halves=st.sampled_from([("encoder", "decoder"), ("encoder",), ("decoder",)]),
        ),
    ),
    "controlnet": Table(
        controlnet.controlnet_shapes,
        controlnet.controlnet_size,
        controlnet.CONTROLNET_SD15,
        st.builds(
            controlnet.ControlNetSize,
            unet=st.sampled_from(
                [UNetSize(4, (1, 2), (1,), 1, 6), UNetSize(3, (1, 3, 2), (0, 2), 2, 5, linear=True)]
            ),
            hint=st.tuples(dims, dims, dims, dims),
            hint_channels=dims,
        ),
    ),
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
    "flux2": Table(
        flux2.flux2_shapes,
        flux2.flux2_size,
        flux2.FLUX2_DEV,
        sizes(flux2.Flux2Size, double_blocks=few, single_blocks=few, guidance=st.booleans()),
    ),
    "flux2-vae": Table(
        flux2.flux2_vae_shapes,
        flux2.flux2_vae_size,
        flux2.Flux2VAESize(),
        sizes(flux2.Flux2VAESize, res_blocks=few, channel_mult=st.lists(few, min_size=1, max_size=4).map(tuple)),
    ),
    "mistral": Table(
        flux2.mistral_shapes,
        flux2.mistral_size,
        flux2.MistralSize(),
        sizes(flux2.MistralSize, layers=few, head_dim=st.just(128), norm=st.booleans()),
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
        (flux.flux_shapes, flux.FLUX_DEV, 11_901_408_320),
        (flux.flux_shapes, flux.FLUX_SCHNELL, 11_891_178_560),
        (flux.flux_shapes, flux.FLUX_FILL, 11_902_391_360),
        (mmdit.mmdit_shapes, mmdit.SD3_MEDIUM, 2_084_951_104),
        (mmdit.mmdit_shapes, mmdit.SD35_LARGE, 8_146_280_768),
        (text.t5_shapes, text.T5_XXL, 4_762_310_656),
        (esrgan.esrgan_shapes, esrgan.ESRGAN_X4, 16_697_987),
        (esrgan.esrgan_shapes, esrgan.ESRGAN_ANIME_6B, 4_467_779),
        (taesd.taesd_shapes, taesd.TAESD, 2_445_063),
        (controlnet.controlnet_shapes, controlnet.CONTROLNET_SD15, 361_279_120),
        (chroma.chroma_shapes, chroma.CHROMA, 8_899_983_424),
        (zimage.zimage_shapes, zimage.ZIMAGE, 6_154_908_736),
        (flux2.flux2_shapes, flux2.FLUX2_DEV, 32_223_281_152),
        (flux2.flux2_shapes, flux2.FLUX2_KLEIN_4B, 3_875_544_576),
        (flux2.flux2_shapes, flux2.FLUX2_KLEIN_9B, 9_078_581_248),
        (flux2.flux2_vae_shapes, flux2.Flux2VAESize(), 84_046_371),
        (flux2.mistral_shapes, flux2.MistralSize(), 22_901_314_560),
    ],
)
def test_parameters(shapes, size, parameters):
    assert sum(math.prod(shape) for shape in shapes(size).values()) == parameters


def test_a_mistral_that_ends_early_needs_no_norm():
    size = flux2.MistralSize(layers=30, norm=False)
    assert flux2.mistral_size(flux2.mistral_shapes(size)) == size
