"""TAESD, ESRGAN and ControlNet against answers recorded from their peers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_side_models as tiny

from refsd.models.controlnet import controlnet
from refsd.models.controlnet.network import controlnet_keymap as controlnet_keymap
from refsd.models.esrgan import rrdbnet
from refsd.models.esrgan.network import esrgan_named, esrgan_numbered
from refsd.models.taesd import decode, encode
from refsd.models.taesd.network import taesd_keymap
from refsd.models.unet import unet
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "side_models.npz")
INPUTS = tiny.inputs()
MODELS = tuple(INPUTS)


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def run(model, numerics=FLOAT64, given=None, weights=None, taps=None):
    """name -> output, as recorded"""

    def module(part):
        return Module(weights if weights and part == model else tiny.weights(part), Arithmetic(numerics), taps=taps)

    m = module(model)
    a = {name: x if name == "timesteps" else m.store(x) for name, x in (given or INPUTS[model]).items()}
    if model.startswith("taesd"):
        return {"z": encode(m["encoder"], a["x"]), "x": decode(m["decoder"], a["z"])}
    if "esrgan" in model:
        return {"y": rrdbnet(m, a["x"])}
    trunk = a["timesteps"], a["context"]
    if model == "controlnet-union":
        control = controlnet(m, a["x"], a["hint"], *trunk, strength=0.9, control_type=4)
        return {f"{i}": residual for i, residual in enumerate(control)}
    control = controlnet(m, a["x"], a["hint"], *trunk, strength=0.9)
    eps = unet(module("unet"), a["x"], *trunk, control=control)
    return {**{f"{i}": residual for i, residual in enumerate(control)}, "eps": eps}


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("model", MODELS)
def test_the_recorded_answers_of_the_peers_from_every_weight(model):
    weights = Read(tiny.weights(model))
    outputs = run(model, weights=weights)
    recorded = [name for name in RECORDED.files if name.startswith(f"{model}/")]
    assert {name.split("/")[1] for name in recorded} == set(outputs)
    for name in recorded:
        assert distance(tiny.sampled(outputs[name.split("/")[1]]), RECORDED[name]) <= 1e-12, name
    assert weights.read == set(weights)


# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 2e-6, "torch-f16": 6e-3, "torch-bf16": 5e-2, "ggml-cpu": 6e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("model", MODELS)
def test_every_profile_runs_near_the_truth(model, profile):
    numerics = PROFILES[profile]
    for name, y in run(model, numerics).items():
        assert y.dtype == numerics.storage_dtype, name
        assert 0 < distance(tiny.sampled(y), RECORDED[f"{model}/{name}"]) <= AWAY[profile]


@pytest.mark.jitted
@pytest.mark.parametrize("model", MODELS)
def test_the_items_of_a_batch_do_not_meet(model):
    """But for ControlNet Union, whose attention runs over them, as its original's: hints that differ meet."""
    both = run(model)
    for i in range(2):
        alone = run(model, given={name: x[i : i + 1] for name, x in INPUTS[model].items()})
        for name, y in both.items():
            assert (distance(alone[name][0], y[i]) <= 1e-13) == (model != "controlnet-union")


@pytest.mark.jitted
def test_a_union_s_items_do_not_meet_if_they_have_one_hint():
    given = {**INPUTS["controlnet-union"], "hint": INPUTS["controlnet-union"]["hint"][[0, 0]]}
    both = run("controlnet-union", given=given)
    alone = run("controlnet-union", given={name: x[:1] for name, x in given.items()})
    for name, y in both.items():
        assert distance(alone[name][0], y[0]) <= 1e-13


@pytest.mark.jitted
def test_taps_are_named_after_the_keys():
    taps = Taps()
    run("taesd4", taps=taps)
    run("esrgan4", taps=taps)
    run("controlnet", taps=taps)
    assert {"encoder.1", "encoder", "decoder.3", "decoder"} <= set(taps)
    assert {"body.1", "body.0.rdb3"} <= set(taps)
    assert {"input_hint_block", "zero_convs.2", "middle_block_out", "middle_block.1"} <= set(taps)


def test_a_picture_that_cannot_be_unshuffled():
    with pytest.raises(BadInput, match="x is 4 x 5 pixels, these weights take multiples of 2"):
        rrdbnet(Module(tiny.weights("real-esrgan2")), np.zeros((1, 3, 4, 5)))


@pytest.mark.jitted
def test_a_unet_refuses_the_control_of_another():
    a = INPUTS["controlnet"]
    trunk = a["x"], a["timesteps"], a["context"]
    with pytest.raises(BadInput, match="control has 2 parts, this UNet takes 5"):
        unet(Module(tiny.weights("unet")), *trunk, control=(np.zeros(1), np.zeros(1)))


@pytest.mark.parametrize(
    ("keymap", "part", "known"),
    [
        (taesd_keymap(), "taesd4", {"encoder.layers.14.bias", "decoder.layers.0.weight", "decoder.layers.18.bias"}),
        (esrgan_numbered(1, 1), "esrgan1", {"model.0.bias", "model.1.sub.1.bias", "model.2.bias", "model.4.bias"}),
        (esrgan_numbered(1, 2), "esrgan2", {"model.3.bias", "model.5.bias", "model.7.bias"}),
        (
            esrgan_numbered(2, 4),
            "esrgan4",
            {
                "model.3.bias",
                "model.6.bias",
                "model.8.bias",
                "model.10.weight",
                "model.1.sub.2.bias",
                "model.1.sub.1.RDB3.conv5.0.bias",
            },
        ),
        (esrgan_named(2), "esrgan4", {"RRDB_trunk.1.RDB3.conv5.bias", "trunk_conv.bias", "upconv2.bias"}),
        (
            controlnet_keymap(2, 1),
            "controlnet",
            {
                "controlnet_cond_embedding.blocks.5.bias",
                "controlnet_mid_block.bias",
                "controlnet_down_blocks.3.bias",
            },
        ),
    ],
)
def test_keymaps_there_and_back(keymap, part, known):
    ours = tiny.weights(part)
    theirs = keymap.write(ours)
    assert len(theirs) == len(ours)
    assert known <= set(theirs)
    sources, unread = keymap.sources(theirs)
    assert not unread
    assert {name: source.names[0] for name, source in sources.items()} == dict(zip(ours, theirs, strict=True))
