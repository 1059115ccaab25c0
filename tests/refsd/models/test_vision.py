"""Vision towers and Redux against answers recorded from transformers and diffusers in float64."""

from pathlib import Path

import numpy as np
import pytest
import tiny_models as tiny
import tiny_vision as model

from refsd.models.redux import redux
from refsd.models.vision import clip_vision, siglip_vision
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "vision.npz")


def module(part):
    m = Module(model.weights(part), Arithmetic(FLOAT64), taps=Taps())
    return m, m.store(model.inputs(part))


def agrees(y, name):
    want = RECORDED[name]
    assert np.linalg.norm(tiny.sampled(np.asarray(y)) - want) <= 1e-12 * np.linalg.norm(want), name


def test_clip():
    m, x = module("clip")
    last, penultimate, embeds = clip_vision(m, x, model.HEADS)
    for name, y in {"last": last, "penultimate": penultimate, "embeds": embeds}.items():
        agrees(y, f"clip/{name}")
    agrees(m.taps["vision_model.encoder.layers.0"], "clip/first")


def test_siglip():
    m, x = module("siglip")
    agrees(siglip_vision(m, x, model.HEADS), "siglip/last")
    agrees(m.taps["vision_model.encoder.layers.0"], "siglip/first")


def test_redux():
    agrees(redux(*module("redux")), "redux/out")


def test_a_picture_of_another_size():
    m, _ = module("siglip")
    with pytest.raises(BadInput, match=r"9 x 6 pixels make 6 tokens, and .*position_embedding.* has 4: resize"):
        siglip_vision(m, np.zeros((1, 3, 9, 6)), model.HEADS)
