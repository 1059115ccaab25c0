"""SDXL's and SD 2's models against answers recorded from diffusers and transformers in float64."""

import numpy as np
import pytest
import tiny_sdxl as tiny
from tiny_models import sampled

from refsd.models.clip import clip_text, clip_text_with_projection
from refsd.models.clip.openclip_names import OpenCLIP
from refsd.models.controlnet import controlnet
from refsd.models.controlnet.network import controlnet_keymap as controlnet_keymap
from refsd.models.ip_adapter import Prompt
from refsd.models.unet import size_condition, spatial_transformer, unet
from refsd.models.unet.network import unet_keymap as unet_keymap
from refsd.module import Module, Taps
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

RECORDED = np.load(tiny.RECORDED)
SHAPES = tiny.recorded_shapes()
INPUTS = {name: x if x.dtype == np.int64 else x.astype(np.float64) for name, x in tiny.inputs().items()}


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def module(part):
    return Module(Read(tiny.weights(part, SHAPES[part])))


def zeros(part):
    return Module({name: stored(np.zeros(shape, np.float32)) for name, shape in SHAPES[part].items()})


def label(m):
    return size_condition(m, INPUTS["pooled"], INPUTS["sizes"]) if "label_emb" in m else None


def run_unet(m, control=None):
    return unet(m, INPUTS["x"], INPUTS["timesteps"], INPUTS["context"], y=label(m), control=control)


def assert_recorded(name, y):
    want = RECORDED[name]
    assert np.linalg.norm(sampled(y) - want) <= 1e-12 * np.linalg.norm(want)


@pytest.mark.jitted
@pytest.mark.parametrize("part", ["unet-sdxl", "unet-sd2"])
def test_the_unets(part):
    m = module(part)
    assert_recorded(f"{part}/out", run_unet(m))
    assert m.weights.read == set(SHAPES[part])


@pytest.mark.jitted
@pytest.mark.parametrize("kind", ["sdxl", "sd2"])
def test_the_controlnets_and_the_unets_that_they_control(kind):
    part = f"controlnet-{kind}"
    m = module(part)
    trunk = INPUTS["timesteps"], INPUTS["context"]
    control = controlnet(m, INPUTS["x"], INPUTS["hint"], *trunk, strength=0.9, y=label(m))
    assert {f"{part}/{i}" for i in range(len(control))} | {f"{part}/eps"} == {n for n in RECORDED if part in n}
    for i, residual in enumerate(control):
        assert_recorded(f"{part}/{i}", residual)
    assert m.weights.read == set(SHAPES[part])
    assert_recorded(f"{part}/eps", run_unet(module(f"unet-{kind}"), control))


def test_bigg():
    m = module("clip-g")
    hidden, _, pooled = clip_text_with_projection(m, INPUTS["input_ids"], num_heads=2, eos=tiny.EOS)
    assert_recorded("clip-g/hidden", hidden)
    assert_recorded("clip-g/pooled", pooled)
    assert m.weights.read == set(SHAPES["clip-g"])


def test_every_size_has_256_channels_of_its_own():
    m = Module({})
    before = size_condition(m, INPUTS["pooled"], INPUTS["sizes"])
    assert before.shape == (2, 8 + 6 * 256)
    np.testing.assert_array_equal(before[:, :8], INPUTS["pooled"])
    assert (before[0, [8 + 256 * 2, 8 + 256 * 2 + 128]] == [1, 0]).all()  # crop top is 0: cos, sin
    changed = INPUTS["sizes"].copy()
    changed[1, 4] += 1
    after = size_condition(m, INPUTS["pooled"], changed)
    moved = np.argwhere(before != after)
    assert set(moved[:, 0]) == {1}
    assert moved[:, 1].min() >= 8 + 4 * 256 and moved[:, 1].max() < 8 + 5 * 256


@pytest.mark.jitted
def test_the_first_level_does_not_attend_and_the_second_twice():
    m = module("unet-sdxl")
    m.taps = Taps("*attn2")
    run_unet(m)
    assert list(m.taps) == [
        f"{at}.1.transformer_blocks.{i}.attn2"
        for at in ("input_blocks.3", "middle_block", "output_blocks.0", "output_blocks.1")
        for i in range(2)
    ]


def test_hidden_without_the_final_norm():
    m = module("clip-g")
    m.taps = Taps()
    ids = INPUTS["input_ids"]
    raw, _, _ = clip_text(m, ids, 2, "gelu", eos=tiny.EOS, final_norm=False)
    np.testing.assert_array_equal(raw, m.taps["text_model.encoder.layers.2"])
    normed, _, pooled = clip_text(m, ids, 2, "gelu", eos=tiny.EOS)
    np.testing.assert_array_equal(normed, m["text_model"].layer_norm("final_layer_norm", raw))
    np.testing.assert_array_equal(pooled, normed[[0, 1], [4, 6]])


def test_a_label_that_is_missing_or_too_many_is_an_error():
    m = zeros("unet-sdxl")
    y = size_condition(m, INPUTS["pooled"], INPUTS["sizes"])
    a = INPUTS["x"], INPUTS["timesteps"], INPUTS["context"]
    with pytest.raises(BadInput, match="y is missing"):
        unet(m, *a)
    with pytest.raises(BadInput, match="y is given"):
        unet(zeros("unet-sd2"), *a, y=y)
    with pytest.raises(BadInput, match="y is missing: a ControlNet takes it"):
        controlnet(zeros("controlnet-sdxl"), a[0], INPUTS["hint"], *a[1:])
    with pytest.raises(BadInput, match="y is given: a ControlNet takes it"):
        controlnet(zeros("controlnet-sd2"), a[0], INPUTS["hint"], *a[1:], y=y)


def test_channels_that_are_no_whole_heads_are_an_error():
    m = zeros("unet-sdxl")["input_blocks.3.1"]
    with pytest.raises(BadInput, match=r"input_blocks.3.1.proj_in has 64 channels: .* head_dim, which is 5"):
        spatial_transformer(
            m, np.zeros((1, 64, 1, 1)), Prompt(INPUTS["context"]), num_heads=8, num_groups=32, head_dim=5
        )


def test_openclip_s_names():
    keymap = OpenCLIP(3)
    ours = tiny.weights("clip-g", SHAPES["clip-g"])
    theirs = keymap.write(ours)
    assert len(theirs) == len(ours) - 3 * 4  # q, k, v are one
    at = "text_model.encoder.layers.1.self_attn"
    packed = theirs["transformer.resblocks.1.attn.in_proj_weight"].values()
    np.testing.assert_array_equal(packed[128:256], ours[f"{at}.k_proj.weight"].values())
    np.testing.assert_array_equal(theirs["text_projection"].values().T, ours["text_projection.weight"].values())
    found, rest = keymap.sources([*theirs, "logit_scale"])
    assert rest == ["logit_scale"]
    assert found.keys() == ours.keys()
    for name, source in found.items():
        assert source.shape({n: w.shape for n, w in theirs.items()}) == ours[name].shape
        np.testing.assert_array_equal(source.read(theirs).values(), ours[name].values())


@pytest.mark.parametrize(
    ("part", "keymap"), [("unet-sdxl", unet_keymap(2, 1, (1,))), ("controlnet-sdxl", controlnet_keymap(2, 1))]
)
def test_diffusers_name_of_the_label(part, keymap):
    weights = {name: stored(np.zeros(2, np.float32)) for name in SHAPES[part]}
    theirs = keymap.write(weights)
    assert {"add_embedding.linear_1.weight", "add_embedding.linear_2.bias", "conv_in.bias"} <= set(theirs)
    found, rest = keymap.sources(theirs)
    assert rest == [] and found.keys() == weights.keys()
