"""The pages of families fit each other and the tables that they name rows of."""

import numpy as np
import pytest

from refsd.components import COMPONENTS
from refsd.families import FAMILIES, VARIANTS, identify, latents_of
from refsd.families.flow import ENGINES
from refsd.models.catalogue import DENOISERS, NETWORKS
from refsd.models.vae.latents import LATENT_SCALES
from refsd.pipelines.initial_latent import EXTRA_CHANNELS
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import FLOW_SCHEDULES


def test_every_denoiser_has_a_family_and_every_variant_one():
    assert {family.network for family in FAMILIES.values()} == {*DENOISERS}
    assert len(VARIANTS) == sum(len(family.variants) for family in FAMILIES.values())
    assert [family.released for family in FAMILIES.values()] == sorted(f.released for f in FAMILIES.values())


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_names_what_there_is(name):
    variant = VARIANTS[name]
    rows = {*ENGINES}, {*ENGINES, "comfyui"}
    for component, encoder in variant.encoders.items():
        kind = "text conditioner" if encoder.reads else "text encoder"
        assert NETWORKS[component].kind == kind and encoder.rules.keys() in rows
        known = {**COMPONENTS[component].outputs, **COMPONENTS[component].also}
        assert encoder.output in ({"hidden_states"} if encoder.layers else known)
    assert variant.schedule.keys() in rows
    assert {*variant.schedule.values()} <= {*SCHEDULES, *(FLOW_SCHEDULES if variant.flow else ())}
    assert not variant.draws or variant.extra_channels in {None, *EXTRA_CHANNELS}
    assert variant.flow is None or variant.flow.shift.keys() in rows


def test_latents_are_the_familys():
    assert [*LATENT_SCALES] == ["sd1", "sd2", "sdxl", "sd3", "flux", "lumina2", "chroma", "zimage"]
    assert latents_of("sdxl-refiner") is LATENT_SCALES["sdxl"] and latents_of("sd35-large") is LATENT_SCALES["sd3"]
    assert latents_of("flux2-dev") is None and latents_of("parts") is None


def test_latents_are_shifted_then_scaled_and_back():
    """By hand, for the picture of a latent of 1."""
    ones = np.ones((1, 4, 2, 2))
    want = {"sd1": 0.18215, "sd2": 0.18215, "sdxl": 0.13025, "sd3": 1.43729255}
    want |= dict.fromkeys(("flux", "lumina2", "chroma", "zimage"), 0.31924851)
    assert set(want) == set(LATENT_SCALES)
    for family, scale in LATENT_SCALES.items():
        np.testing.assert_allclose(scale.to_denoiser(ones), want[family], rtol=1e-12)
        np.testing.assert_allclose(scale.to_vae(scale.to_denoiser(ones)), 1, rtol=1e-15)


# Channels of the first convolution, of label_emb, of the text; a linear proj_in -> the variant
UNETS = {
    (4, 0, 768, False): "sd15",
    (9, 0, 768, False): "sd15-inpaint",
    (5, 0, 1024, True): "sd2-depth",
    (7, 0, 1024, True): "sd2-upscale",
    (4, 1536, 1024, True): "sd2-unclip",
    (4, 2816, 2048, True): "sdxl",
    (8, 2816, 2048, True): "sdxl-edit",
    (4, 2560, 1280, True): "sdxl-refiner",
}


@pytest.mark.parametrize("of", UNETS)
def test_unets_are_told_apart(of):
    channels, label, text, linear = of
    shapes = {
        "input_blocks.0.0.weight": (320, channels, 3, 3),
        "input_blocks.1.1.proj_in.weight": (320, 320) if linear else (320, 320, 1, 1),
        "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (320, text),
    } | ({"label_emb.0.0.weight": (1280, label)} if label else {})
    assert identify({"unet": shapes}).name == UNETS[of]
    unets = [family for family in FAMILIES.values() if family.network == "unet"]
    assert sum(family.identify(shapes) is not None for family in unets) == 1
