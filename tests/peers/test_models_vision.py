"""Vision towers and Redux against transformers and diffusers, in float64; a picture is square by its positions."""

import numpy as np
import pytest
import torch
from diffusers import FluxPriorReduxPipeline
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from float64_peers import distance, draw, draw_weights, float64_throughout
from PIL import Image
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection, SiglipVisionConfig, SiglipVisionModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from refsd.models.redux import redux
from refsd.models.vision import clip_vision, siglip_vision
from refsd.models.vision.network import ReduxSize, VisionSize, redux_shapes, siglip_keymap, vision_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer


def tensors(weights):
    return {name: torch.from_numpy(w) for name, w in weights.items()}


def config(size, heads, **more):
    return {
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": heads,
        "patch_size": size.patch,
        "image_size": size.patch * int(size.tokens**0.5),
        **more,
    }


def peer_clip(size, heads, weights, x, act="gelu", eps=1e-5):
    with float64_throughout():
        made = CLIPVisionConfig(
            **config(size, heads, hidden_act=act, layer_norm_eps=eps, projection_dim=size.projection)
        )
        peer = CLIPVisionModelWithProjection(made).eval()
        peer.load_state_dict(tensors(weights))
        out = peer(torch.from_numpy(x), output_hidden_states=True)
    return {
        "last": out.last_hidden_state,
        "penultimate": out.hidden_states[-2],
        "embeds": out.image_embeds,
        "first": out.hidden_states[1],
    }


def siglip_of(size, heads, weights, eps=1e-6):
    there = siglip_keymap().write({name: stored(w) for name, w in weights.items()})
    peer = SiglipVisionModel(
        SiglipVisionConfig(**config(size, heads, layer_norm_eps=eps), vision_use_head=False)
    ).eval()
    peer.load_state_dict(tensors({name: w.values() for name, w in there.items()}))
    return peer


def peer_siglip(size, heads, weights, x, eps):
    with float64_throughout():
        out = siglip_of(size, heads, weights, eps)(
            torch.from_numpy(np.ascontiguousarray(x)), output_hidden_states=True
        )
    return {"last": out.last_hidden_state, "first": out.hidden_states[1]}


def peer_redux(size, heads, weights, x):
    with float64_throughout():
        peer = ReduxImageEncoder(size.hidden, size.context_dim).eval()
        peer.load_state_dict(tensors(weights))
        return {"out": peer(torch.from_numpy(x)).image_embeds}


def module(weights):
    return Module({name: stored(w) for name, w in weights.items()}, taps=Taps())


@pytest.mark.parametrize(("act", "eps"), [("gelu", 1e-5), ("quick_gelu", 1e-3)])
def test_clip(act, eps):
    size = VisionSize(160, 3, 90, patch=4, tokens=25, projection=24)
    weights, x = draw_weights(vision_shapes(size), seed=2), draw((2, 3, 20, 20), 3)
    theirs, m = peer_clip(size, 2, weights, x, act, eps), module(weights)
    last, penultimate, embeds = clip_vision(m, x, 2, act, eps)
    ours = {"last": last, "penultimate": penultimate, "embeds": embeds}
    ours["first"] = m.taps["vision_model.encoder.layers.0"]
    for name, want in theirs.items():
        assert distance(ours[name], want) <= 1e-12, name


@pytest.mark.parametrize(("side", "eps"), [(12, 1e-6), (14, 1e-3)])
def test_siglip(side, eps):
    """14 pixels in squares of 3: the last two rows and columns are cut off."""
    size = VisionSize(144, 3, 90, patch=3, tokens=16)
    weights, x = draw_weights(vision_shapes(size), seed=4), draw((2, 3, side, side), 5)
    theirs, m = peer_siglip(size, 2, weights, x, eps), module(weights)
    assert distance(siglip_vision(m, x, 2, eps), theirs["last"]) <= 1e-12
    assert distance(m.taps["vision_model.encoder.layers.0"], theirs["first"]) <= 1e-12


def test_redux():
    size = ReduxSize(24, 40)
    weights, x = draw_weights(redux_shapes(size), seed=6), draw((2, 7, 24), 7)
    assert distance(redux(module(weights), x), peer_redux(size, None, weights, x)["out"]) <= 1e-12


def test_the_words_of_a_picture_are_those_of_diffusers_prior():
    """From the pixels of a PNG on; the prior's text is zeros where it has no text encoder."""
    size, wide = VisionSize(144, 2, 90, patch=3, tokens=16), ReduxSize(144, 4096)
    tower, last = draw_weights(vision_shapes(size), seed=8), draw_weights(redux_shapes(wide), seed=9)
    pixels = np.random.default_rng(1).integers(0, 256, (12, 12, 3), np.uint8)
    with float64_throughout():
        encoder = siglip_of(size, 2, tower)
        embedder = ReduxImageEncoder(wide.hidden, wide.context_dim).eval()
        embedder.load_state_dict(tensors(last))
        reader = SiglipImageProcessorPil(size={"height": 12, "width": 12})
        prior = FluxPriorReduxPipeline(encoder, reader, embedder)
        want = prior(Image.fromarray(pixels)).prompt_embeds[:, 512:]
    image = pixels.transpose(2, 0, 1)[None] / 255
    seen = siglip_vision(module(tower), image * 2 - 1, 2)
    # The processor hands its pixels over in float32.
    assert distance(redux(module(last), seen), want) <= 1e-6


def test_the_released_tower_has_these_tensors():
    made = {"num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 384, "patch_size": 14}
    with torch.device("meta"):
        peer = SiglipVisionModel(
            SiglipVisionConfig(hidden_size=1152, intermediate_size=4304, vision_use_head=False, **made)
        )
    theirs = {name: tuple(w.shape) for name, w in peer.state_dict().items()}
    ours = {name: np.broadcast_to(np.float32(0), shape) for name, shape in vision_shapes(VisionSize()).items()}
    written = siglip_keymap().write({name: stored(w) for name, w in ours.items()})
    assert {name: tuple(w.shape) for name, w in written.items()} == theirs
