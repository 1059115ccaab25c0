"""Tables of all but Stable Diffusion's own networks: read back from themselves, whole or not, in any order."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsd.models.anima.network import ANIMA, AnimaSize, anima_shapes, anima_size
from refsd.models.anima_conditioner.network import (
    CONDITIONER,
    ConditionerSize,
    conditioner_shapes,
    conditioner_size,
)
from refsd.models.chroma.network import CHROMA, ChromaSize, chroma_shapes, chroma_size
from refsd.models.controlnet.network import CONTROLNET_SD15, ControlNetSize, controlnet_shapes, controlnet_size
from refsd.models.ernie_image.network import ERNIE_IMAGE, ErnieImageSize, ernie_image_shapes, ernie_image_size
from refsd.models.esrgan.network import ESRGAN_ANIME_6B, ESRGAN_X4, ESRGANSize, esrgan_shapes, esrgan_size
from refsd.models.flux.network import FLUX_DEV, FLUX_FILL, FLUX_SCHNELL, FluxSize, flux_shapes, flux_size
from refsd.models.flux2.network import (
    FLUX2_DEV,
    FLUX2_KLEIN_4B,
    FLUX2_KLEIN_9B,
    Flux2Size,
    flux2_shapes,
    flux2_size,
)
from refsd.models.flux3.network import FLUX3_DISTILLED, FLUX3_KLEIN, Flux3Size, flux3_shapes, flux3_size
from refsd.models.gemma2.network import GEMMA2_2B, Gemma2Size, gemma2_shapes, gemma2_size
from refsd.models.ideogram4.network import IDEOGRAM4, Ideogram4Size, ideogram4_shapes, ideogram4_size
from refsd.models.ip_adapter.network import (
    IP_ADAPTER_FULL_FACE_SD15,
    IP_ADAPTER_PLUS_SD15,
    IP_ADAPTER_PLUS_SDXL,
    IP_ADAPTER_SD15,
    IP_ADAPTER_SDXL,
    IPAdapterSize,
    ip_adapter_shapes,
    ip_adapter_size,
)
from refsd.models.krea2.network import KREA2, Krea2Size, krea2_shapes, krea2_size
from refsd.models.ltx2.network import LTX2, LTX23, LTX2Size, ltx2_shapes, ltx2_size
from refsd.models.lumina2.network import LUMINA2, Lumina2Size, lumina2_shapes, lumina2_size
from refsd.models.minimax_h3.network import MINIMAX_H3, PRUNED, MiniMaxH3Size, minimax_h3_shapes, minimax_h3_size
from refsd.models.mistral.network import MINISTRAL_3B, MistralSize, mistral_shapes, mistral_size
from refsd.models.mmdit.network import SD3_MEDIUM, SD35_LARGE, MMDiTSize, mmdit_shapes, mmdit_size
from refsd.models.qwen3.network import QWEN3_4B, Qwen3Size, qwen3_shapes, qwen3_size
from refsd.models.qwen3_vision.network import (
    QWEN3_VISION_8B,
    Qwen3VisionSize,
    qwen3_vision_shapes,
    qwen3_vision_size,
)
from refsd.models.qwen_image.network import QWEN_IMAGE, QwenImageSize, qwen_image_shapes, qwen_image_size
from refsd.models.qwen_image21.network import QWEN_IMAGE21, QwenImage21Size, qwen_image21_shapes, qwen_image21_size
from refsd.models.qwen_image_controlnet.network import (
    QWEN_IMAGE_CONTROL,
    QwenImageControlSize,
    qwen_image_control_shapes,
    qwen_image_control_size,
)
from refsd.models.qwen_vision.network import QWEN2_5_VISION, QwenVisionSize, qwen_vision_shapes, qwen_vision_size
from refsd.models.qwen_vl.network import (
    QWEN2_5_VL_7B,
    QWEN3_VL_4B,
    QWEN3_VL_8B,
    Qwen25Size,
    qwen2_5_vl_shapes,
    qwen2_5_vl_size,
    qwen3_vl_shapes,
    qwen3_vl_size,
)
from refsd.models.t5.network import T5_XXL, T5Size, t5_shapes, t5_size
from refsd.models.taesd.network import TAESD, TAESDSize, taesd_shapes, taesd_size
from refsd.models.unet.tensors import UNetSize
from refsd.models.vae_flux2.network import Flux2VAESize, flux2_vae_shapes, flux2_vae_size
from refsd.models.vae_ltx2.network import (
    LTX2_VAE_SIZE,
    LTX23_VAE_SIZE,
    LTX_VIDEO_VAE_SIZE,
    LTX2VAESize,
    ltx2_vae_shapes,
    ltx2_vae_size,
)
from refsd.models.vae_minimax_h3.network import MiniMaxH3VAESize, minimax_h3_vae_shapes, minimax_h3_vae_size
from refsd.models.vae_qwen_image21.network import QwenImage21VAESize, qwen_image21_vae_shapes, qwen_image21_vae_size
from refsd.models.vae_wan.network import WanVAESize, wan_vae_shapes, wan_vae_size
from refsd.models.vae_wan.wan22 import Wan22VAESize, wan22_vae_shapes, wan22_vae_size
from refsd.models.vision.network import (
    CLIP_VIT_H,
    CLIP_VIT_L,
    REDUX_DEV,
    SIGLIP_SO400M,
    ReduxSize,
    VisionSize,
    clip_vision_size,
    redux_shapes,
    redux_size,
    siglip_size,
    vision_shapes,
)
from refsd.models.wan.network import WAN_14B, WanSize, wan_shapes, wan_size
from refsd.models.zimage.network import ZIMAGE, ZImageSize, zimage_shapes, zimage_size
from refsd.models.zimage_controlnet.network import (
    ZIMAGE_CONTROL,
    ZImageControlSize,
    zimage_control_shapes,
    zimage_control_size,
)

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
    return sizes(MMDiTSize, blocks=few, qk_norm=st.sampled_from([0, 8]), dual=some).map(whole)


def widths(levels):
    """Channels of each level, none a multiple of another."""
    return st.lists(dims, min_size=levels, max_size=levels).map(tuple)


def wan_vaes():
    """The decoder halves the channels of every level but the first."""

    def sized(levels):
        even = st.tuples(dims, *[dims.map(lambda half: 2 * half)] * (levels - 1))
        return sizes(WanVAESize, widths=even, res_blocks=few, halves=st.tuples(*[st.booleans()] * (levels - 1)))

    return st.integers(1, 4).flatmap(sized)


def residual_vaes(size):
    """Wan 2.2's autoencoder and Qwen-Image 2.1's, whose halves have widths of their own."""

    def sized(levels):
        halves = st.tuples(*[st.booleans()] * (levels - 1))
        return sizes(size, res_blocks=few, widths=widths(levels), decoder=widths(levels), halves=halves)

    return st.integers(1, 4).flatmap(sized)


def ltx2_vaes():
    """Levels of either half in any number."""

    def half(levels, *fields):
        numbers = st.lists(few, min_size=levels, max_size=levels).map(tuple)
        values = widths(levels), widths(levels - 1), numbers
        return st.fixed_dictionaries(dict(zip(fields, values, strict=True)))

    def sized(levels):
        encoder = half(levels[0], "widths", "down", "res_blocks")
        decoder = half(levels[1], "decoder", "up", "decoder_blocks")
        return st.builds(
            lambda encoder, decoder, latents, conditioned: LTX2VAESize(
                **encoder, **decoder, latent_channels=latents, conditioned=conditioned
            ),
            *(encoder, decoder, dims, st.booleans()),
        )

    return st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(sized)


def t5s():
    """One layer cannot tell where its table would be."""
    return sizes(T5Size, layers=st.integers(2, 3), table_in_every_layer=st.booleans())


def ip_adapters():
    """The plain kind, full-face, and plus."""
    crossing = st.lists(dims, min_size=1, max_size=5).map(tuple)
    plain = {"width": st.just(0), "layers": st.just(0), "keys": st.just(0), "mlp": st.just(0)}
    return (
        sizes(IPAdapterSize, **plain, crossing=crossing)
        | sizes(IPAdapterSize, **plain, tokens=st.just(0), crossing=crossing)
        | sizes(IPAdapterSize, layers=few, crossing=crossing)
    )


COPIED = UNetSize(4, (4, 8), (1,), 1, 6), UNetSize(3, (3, 9, 6), (0, 2), 2, 5, linear=True)

TABLES = {
    "mmdit": Table(mmdit_shapes, mmdit_size, SD3_MEDIUM, mmdits()),
    "t5": Table(t5_shapes, t5_size, T5_XXL, t5s()),
    "qwen3": Table(qwen3_shapes, qwen3_size, QWEN3_4B, sizes(Qwen3Size, layers=few)),
    "qwen2_5_vl": Table(
        qwen2_5_vl_shapes, qwen2_5_vl_size, QWEN2_5_VL_7B, sizes(Qwen25Size, layers=few, head_dim=st.just(128))
    ),
    "qwen2_5_vision": Table(
        qwen_vision_shapes, qwen_vision_size, QWEN2_5_VISION, sizes(QwenVisionSize, layers=few)
    ),
    "anima": Table(anima_shapes, anima_size, ANIMA, sizes(AnimaSize, layers=few)),
    "anima-conditioner": Table(
        conditioner_shapes, conditioner_size, CONDITIONER, sizes(ConditionerSize, layers=few)
    ),
    "qwen3_vision": Table(
        qwen3_vision_shapes, qwen3_vision_size, QWEN3_VISION_8B, sizes(Qwen3VisionSize, layers=few, mergers=few)
    ),
    "qwen3_vl": Table(qwen3_vl_shapes, qwen3_vl_size, QWEN3_VL_4B, sizes(Qwen3Size, layers=few)),
    "gemma2": Table(gemma2_shapes, gemma2_size, GEMMA2_2B, sizes(Gemma2Size, layers=few, head_dim=st.just(256))),
    "esrgan": Table(
        esrgan_shapes,
        esrgan_size,
        ESRGAN_X4,
        sizes(ESRGANSize, blocks=few, ups=st.integers(0, 2)),
    ),
    "siglip": Table(
        vision_shapes, siglip_size, SIGLIP_SO400M, sizes(VisionSize, layers=few, projection=st.just(0))
    ),
    "clip-vision": Table(vision_shapes, clip_vision_size, CLIP_VIT_H, sizes(VisionSize, layers=few)),
    "redux": Table(redux_shapes, redux_size, REDUX_DEV, sizes(ReduxSize)),
    "ip-adapter": Table(ip_adapter_shapes, ip_adapter_size, IP_ADAPTER_SD15, ip_adapters()),
    "taesd": Table(
        taesd_shapes,
        taesd_size,
        TAESD,
        sizes(
            TAESDSize,
            blocks=st.lists(few, min_size=1, max_size=4).map(tuple),
            pool=st.integers(0, 5),
            halves=st.sampled_from([("encoder", "decoder"), ("encoder",), ("decoder",)]),
        ),
    ),
    "controlnet": Table(
        controlnet_shapes,
        controlnet_size,
        CONTROLNET_SD15,
        st.builds(
            ControlNetSize,
            unet=st.sampled_from(
                [UNetSize(4, (4, 8), (1,), 1, 6), UNetSize(3, (3, 9, 6), (0, 2), 2, 5, linear=True)]
            ),
            hint=st.tuples(dims, dims, dims, dims),
            hint_channels=dims,
            kinds=st.sampled_from([0, 6, 8]),
        ),
    ),
    "flux": Table(
        flux_shapes,
        flux_size,
        FLUX_DEV,
        sizes(FluxSize, double_blocks=few, single_blocks=few, guidance=st.booleans()),
    ),
    "chroma": Table(
        chroma_shapes,
        chroma_size,
        CHROMA,
        sizes(ChromaSize, double_blocks=few, single_blocks=few, layers=few),
    ),
    "qwen-image-controlnet": Table(
        qwen_image_control_shapes,
        qwen_image_control_size,
        QWEN_IMAGE_CONTROL,
        sizes(QwenImageControlSize, layers=few),
    ),
    "zimage-controlnet": Table(
        zimage_control_shapes,
        zimage_control_size,
        ZIMAGE_CONTROL,
        sizes(
            ZImageControlSize,
            layers=few,
            refiners=st.integers(0, 2),
            projects=st.booleans(),
        ).map(lambda size: size._replace(projects=size.projects and size.refiners > 0)),
    ),
    "zimage": Table(
        zimage_shapes,
        zimage_size,
        ZIMAGE,
        sizes(ZImageSize, layers=few, noise_refiners=few, context_refiners=few),
    ),
    "wan": Table(wan_shapes, wan_size, WAN_14B, sizes(WanSize, layers=few, cross_norm=st.booleans())),
    "lumina2": Table(
        lumina2_shapes,
        lumina2_size,
        LUMINA2,
        sizes(Lumina2Size, layers=few, noise_refiners=few, context_refiners=few),
    ),
    "ernie-image": Table(ernie_image_shapes, ernie_image_size, ERNIE_IMAGE, sizes(ErnieImageSize, layers=few)),
    "ideogram4": Table(ideogram4_shapes, ideogram4_size, IDEOGRAM4, sizes(Ideogram4Size, layers=few)),
    "minimax-h3": Table(
        minimax_h3_shapes,
        minimax_h3_size,
        MINIMAX_H3,
        sizes(MiniMaxH3Size, layers=few, refiners=few, curve=st.just(0)),
    ),
    "ltx2": Table(
        ltx2_shapes,
        ltx2_size,
        LTX2,
        sizes(LTX2Size, layers=few, gates=st.just(0), audio_gates=st.just(0), prompts=st.just(False)),
    ),
    "krea2": Table(
        krea2_shapes,
        krea2_size,
        KREA2,
        sizes(Krea2Size, layers=few, layerwise=few, refiners=few),
    ),
    "qwen-image": Table(
        qwen_image_shapes,
        qwen_image_size,
        QWEN_IMAGE,
        sizes(QwenImageSize, layers=few, additions=st.just(0), zero_cond_t=st.sampled_from([None, (), (0,)])),
    ),
    "qwen-image21": Table(qwen_image21_shapes, qwen_image21_size, QWEN_IMAGE21, sizes(QwenImage21Size, layers=few)),
    "flux2": Table(
        flux2_shapes,
        flux2_size,
        FLUX2_DEV,
        sizes(Flux2Size, double_blocks=few, single_blocks=few, guidance=st.booleans()),
    ),
    "flux3": Table(
        flux3_shapes,
        flux3_size,
        FLUX3_KLEIN,
        sizes(Flux3Size, mode_blocks=few, single_blocks=few, target_time=st.booleans()),
    ),
    "flux2-vae": Table(
        flux2_vae_shapes,
        flux2_vae_size,
        Flux2VAESize(),
        st.integers(1, 4).flatmap(
            lambda levels: sizes(Flux2VAESize, res_blocks=few, widths=widths(levels), decoder=widths(levels))
        ),
    ),
    "wan-vae": Table(wan_vae_shapes, wan_vae_size, WanVAESize(), wan_vaes()),
    "wan22-vae": Table(wan22_vae_shapes, wan22_vae_size, Wan22VAESize(), residual_vaes(Wan22VAESize)),
    "minimax-h3-vae": Table(
        minimax_h3_vae_shapes,
        minimax_h3_vae_size,
        MiniMaxH3VAESize(),
        sizes(MiniMaxH3VAESize, widths=widths(6), res_blocks=few, layers=few),
    ),
    "ltx2-vae": Table(ltx2_vae_shapes, ltx2_vae_size, LTX2_VAE_SIZE, ltx2_vaes()),
    "qwen-image21-vae": Table(
        qwen_image21_vae_shapes,
        qwen_image21_vae_size,
        QwenImage21VAESize(),
        residual_vaes(QwenImage21VAESize),
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
        (flux_shapes, FLUX_DEV, 11_901_408_320),
        (flux_shapes, FLUX_SCHNELL, 11_891_178_560),
        (flux_shapes, FLUX_FILL, 11_902_391_360),
        (mmdit_shapes, SD3_MEDIUM, 2_084_951_104),
        (mmdit_shapes, SD35_LARGE, 8_146_280_768),
        (t5_shapes, T5_XXL, 4_762_310_656),
        (esrgan_shapes, ESRGAN_X4, 16_697_987),
        (vision_shapes, SIGLIP_SO400M, 412_987_248),
        (vision_shapes, CLIP_VIT_L, 303_966_208),
        (vision_shapes, CLIP_VIT_H, 632_076_800),
        (redux_shapes, REDUX_DEV, 64_503_808),
        (ip_adapter_shapes, IP_ADAPTER_SD15, 22_319_616),
        (ip_adapter_shapes, IP_ADAPTER_PLUS_SD15, 49_087_488),
        (ip_adapter_shapes, IP_ADAPTER_FULL_FACE_SD15, 21_794_304),
        (ip_adapter_shapes, IP_ADAPTER_SDXL, 351_285_248),
        (ip_adapter_shapes, IP_ADAPTER_PLUS_SDXL, 423_748_864),
        (esrgan_shapes, ESRGAN_ANIME_6B, 4_467_779),
        (taesd_shapes, TAESD, 2_445_063),
        (controlnet_shapes, CONTROLNET_SD15, 361_279_120),
        (chroma_shapes, CHROMA, 8_899_983_424),
        (zimage_shapes, ZIMAGE, 6_154_908_736),
        (gemma2_shapes, GEMMA2_2B, 2_614_341_888),
        (wan_shapes, WAN_14B, 14_288_491_584),
        (lumina2_shapes, LUMINA2, 2_609_769_152),
        (qwen_image_shapes, QWEN_IMAGE, 20_430_401_088),
        (krea2_shapes, KREA2, 12_820_073_036),
        (ernie_image_shapes, ERNIE_IMAGE, 8_033_490_048),
        (ideogram4_shapes, IDEOGRAM4, 9_279_288_448),
        (minimax_h3_shapes, MINIMAX_H3, 33_122_992_896),
        (minimax_h3_shapes, PRUNED, 20_111_438_728),
        (ltx2_shapes, LTX2, 18_876_174_592),
        (ltx2_shapes, LTX23, 18_988_838_144),
        (qwen_image21_shapes, QWEN_IMAGE21, 7_115_124_736),
        (flux2_shapes, FLUX2_DEV, 32_223_281_152),
        (flux2_shapes, FLUX2_KLEIN_4B, 3_875_544_576),
        (flux2_shapes, FLUX2_KLEIN_9B, 9_078_581_248),
        (flux3_shapes, FLUX3_KLEIN, 5_538_458_368),
        (flux3_shapes, FLUX3_DISTILLED, 5_548_681_984),
        (flux2_vae_shapes, Flux2VAESize(), 84_046_371),
        (wan_vae_shapes, WanVAESize(), 126_892_531),
        (wan22_vae_shapes, Wan22VAESize(), 704_688_668),
        (minimax_h3_vae_shapes, MiniMaxH3VAESize(), 2_603_868_984),
        (ltx2_vae_shapes, LTX2_VAE_SIZE, 1_222_479_857),
        (ltx2_vae_shapes, LTX23_VAE_SIZE, 726_106_225),
        (ltx2_vae_shapes, LTX_VIDEO_VAE_SIZE, 1_246_913_778),
        (qwen_image21_vae_shapes, QwenImage21VAESize(), 337_740_404),
        (mistral_shapes, MistralSize(), 22_901_314_560),
        (mistral_shapes, MINISTRAL_3B, 3_429_006_336),
        (qwen2_5_vl_shapes, QWEN2_5_VL_7B, 7_070_619_136),
        (qwen_vision_shapes, QWEN2_5_VISION, 676_550_144),
        (anima_shapes, ANIMA, 1_956_405_248),
        (conditioner_shapes, CONDITIONER, 134_663_680),
        (qwen3_vision_shapes, QWEN3_VISION_8B, 576_388_336),
        (qwen3_vl_shapes, QWEN3_VL_8B, 7_568_405_504),
    ],
)
def test_parameters(shapes, size, parameters):
    assert sum(math.prod(shape) for shape in shapes(size).values()) == parameters


def test_a_mistral_that_ends_early_needs_no_norm():
    size = MistralSize(layers=30, norm=False)
    assert mistral_size(mistral_shapes(size)) == size
