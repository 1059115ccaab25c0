"""config.json of every family: what its page does not compute is refused by the field's name."""

import functools
import json
import math

import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.models.catalogue import NETWORKS
from refsd.models.gemma2.network import Gemma2Size
from refsd.models.mistral.network import MistralSize, mistral_shapes
from refsd.models.qwen_image.network import QwenImageSize, qwen_image_shapes
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.models.wan.network import WanSize, wan_shapes
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint
from refsd.weights.config import component_config

COMPUTED = {name: network.computed for name, network in NETWORKS.items() if network.computed}

SIZES = {component: size for parts in small.FAMILIES.values() for component, size in parts.items()}
SHAPES = {component: small.shapes(component, size) for component, size in SIZES.items()}
FIELDS = [(component, field) for component, of in COMPUTED.items() for field in of]


@pytest.mark.parametrize(("component", "field"), FIELDS)
def test_another_value_is_refused_by_name(tmp_path, component, field):
    path = tmp_path / "config.json"
    for value in ("another", 3.25, [7], {"a": 1}, [[16, 56, 56]]):
        with pytest.raises(BadInput, match=rf"config.json: {field} is .*; refsd computes ") as told:
            component_config(component, path, SHAPES[component], {field: value})
        assert "\n" not in str(told.value) and len(str(told.value)) < 300


@pytest.mark.parametrize("component", COMPUTED)
def test_every_value_that_is_computed_is_taken(tmp_path, component):
    for field, values in COMPUTED[component].items():
        for value in values:
            heads = (
                {"use_linear_projection": True, "attention_head_dim": [1, 2]} if component == "controlnet" else {}
            )
            component_config(component, tmp_path, SHAPES[component], heads | {field: value})


@pytest.mark.parametrize("inner", ["rope_parameters", "text_config"])
def test_what_stands_in_an_inner_object_is_read(tmp_path, inner):
    for component, theta in (("qwen3", 1e6), ("mistral", 1e9)):
        for value in (theta, 5):
            found = component_config(component, tmp_path, SHAPES[component], {inner: {"rope_theta": value}})
            assert found["theta"] == value and type(found["theta"]) is float
        with pytest.raises(BadInput, match="rope_theta is -5; a number above 0 expected"):
            component_config(component, tmp_path, SHAPES[component], {inner: {"rope_theta": -5}})


@pytest.mark.parametrize(
    ("component", "field", "values", "wrong"),
    [
        ("qwen3", "rms_norm_eps", [1e-4], [0, -1e-6, "1e-6", True, float("nan"), [1e-6]]),
        ("mistral", "rms_norm_eps", [1e-6], [None]),
        ("flux2-vae", "batch_norm_eps", [1e-5], [0, "1e-5"]),
        ("qwen2_5_vl", "mrope_section", [[8, 28, 28]], [[16, 24], [16, 24, 25], [-1, 33, 32], 64, [True, 31, 32]]),
        ("qwen3_vl", "mrope_section", [[22, 21, 21]], [[24, 20, 20.0], None]),
        ("gemma2", "sliding_window", [7, 8192], [0, 7.5, None]),
        ("gemma2", "query_pre_attn_scalar", [144, 224], [0]),
        ("gemma2", "attn_logit_softcapping", [30], [None, 0]),
        ("gemma2", "rope_theta", [1e6], ["1e6"]),
        ("gemma2", "rms_norm_eps", [1e-5], [0]),
        ("wan", "eps", [1e-5], [0, "1e-6", None]),
        ("lumina2", "norm_eps", [1e-6], [-1e-5]),
        ("zimage", "norm_eps", [1e-6], ["1e-5"]),
        ("flux2", "eps", [1e-5], [0]),
        ("flux2", "rope_theta", [1e4, 500], [-2000]),
        ("flux3", "eps", [1e-5], [0]),
        ("flux3", "rope_theta", [2e3, 500], [-1]),
        ("krea2", "norm_eps", [1e-6], [None]),
        ("minimax-h3", "norm_eps", [1e-6], [0]),
        ("minimax-h3", "qk_norm_eps", [1e-6], ["1e-6"]),
        ("minimax-h3", "final_norm_eps", [1e-6], [None]),
        ("minimax-h3", "rope_theta", [500], [-1]),
        ("ltx2", "norm_eps", [1e-5], [0]),
        ("ltx2", "rope_theta", [500], [-1]),
        ("ltx2", "audio_pos_embed_max_pos", [30], [20.0, 0]),
        ("ltx2", "attention_head_dim", [32, 64], [5, 7]),
        ("ltx2", "audio_attention_head_dim", [8], [3, True]),
        ("minimax-h3-vae", "norm_eps", [1e-5], [0]),
        ("minimax-h3-vae", "decoder_norm_eps", [1e-6], ["1e-5"]),
        ("minimax-h3-vae", "decoder_rope_theta", [1e4], [-1]),
        ("ltx2-vae", "encoder_causal", [True, False], [1, "true", None]),
        ("ltx2-vae", "decoder_causal", [True, False], [0]),
        ("ernie-image", "eps", [1e-5], [0]),
        ("ernie-image", "rope_theta", [1e4, 500], [-2]),
        ("ideogram4", "norm_eps", [1e-6], [0]),
        ("ideogram4", "rope_theta", [1e4, 500], [-2]),
        ("ideogram4", "mrope_section", [[1, 2, 3]], [[24, 20], None]),
        ("krea2", "rope_theta", [256.0], [True]),
        ("qwen-image21", "eps", [1e-5], [0, "1e-6"]),
        ("clip", "layer_norm_eps", [1e-6], [0, "1e-5"]),
        ("clip_g", "layer_norm_eps", [1e-3], [None]),
        ("clip-vision", "layer_norm_eps", [1e-6], [-1e-5]),
        ("siglip", "layer_norm_eps", [1e-5], [True]),
        ("t5", "layer_norm_epsilon", [1e-5], [0]),
        ("t5", "relative_attention_max_distance", [20, 256], [0, 128.0, None]),
    ],
)
def test_numbers_are_read_and_not_compared(tmp_path, component, field, values, wrong):
    for value in values:
        found = component_config(component, tmp_path, SHAPES[component], {field: value})
        assert value in found.values()
    for value in wrong:
        with pytest.raises(BadInput, match=f"{field} is "):
            component_config(component, tmp_path, SHAPES[component], {field: value})


@pytest.mark.parametrize(
    ("component", "size", "usual"), [("mistral", MistralSize, 128), ("gemma2", Gemma2Size, 256)]
)
def test_the_channels_of_a_head_are_read(tmp_path, component, size, usual):
    def read(channels, heads, kv_heads, **given):
        shapes = NETWORKS[component].shapes(size(64, 1, heads, kv_heads, channels, 96, 100))
        assert NETWORKS[component].shapes(NETWORKS[component].size(shapes)) == shapes
        return component_config(component, tmp_path, shapes, given).get("head_dim")

    assert read(12, 4, 2, head_dim=12, num_attention_heads=4, num_key_value_heads=2) == 12
    assert read(12, 4, 2, head_dim=None, num_attention_heads=4) == read(12, 4, 2, num_attention_heads=4) == 12
    assert read(usual, 4, 2) == usual
    assert read(12, 4, 2) is None
    for given, told in (
        ({"head_dim": 16}, "head_dim is 16; a whole number that divides 24 channels"),
        (
            {"head_dim": 6, "num_attention_heads": 4},
            "num_attention_heads is 4 and head_dim is 6, but q_proj has 48",
        ),
        (
            {"head_dim": 12, "num_key_value_heads": 4},
            "num_key_value_heads is 4 and head_dim is 12, but k_proj has 24",
        ),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'; a whole number that divides 48"),
    ):
        with pytest.raises(BadInput, match=told):
            read(12, 4, 2, **given)


def test_rope_parameters_without_rope_theta_are_refused(tmp_path):
    with pytest.raises(BadInput, match="rope_parameters lacks rope_theta"):
        component_config("qwen3", tmp_path, SHAPES["qwen3"], {"rope_parameters": {"rope_type": "default"}})
    above = {"rope_parameters": {"rope_type": "default"}, "rope_theta": 1e6}
    component_config("qwen3", tmp_path, SHAPES["qwen3"], above)


SCALES = {"sd15": (0.18215, 0), "sdxl": (0.13025, 0), "sd3": (1.5305, 0.0609), "flux-dev": (0.3611, 0.1159)}
SCALES |= {"chroma": SCALES["flux-dev"], "zimage": SCALES["flux-dev"], "sd35-large": SCALES["sd3"]}


@pytest.mark.parametrize("family", SCALES)
def test_a_bare_file_s_latents_are_scaled_as_its_family_has_them(tmp_path, family):
    ((component, size),) = small.FAMILIES[family].items()
    arrays = {f"model.diffusion_model.{n}": a for n, a in small.weights(component, size).items()}
    vae = small.weights("vae", SIZES["vae"])
    save_file(arrays | {f"first_stage_model.{n}": a for n, a in vae.items()}, tmp_path / "a.safetensors")
    config = open_checkpoint(tmp_path / "a.safetensors").components["vae"].config
    assert (config["scaling_factor"], config["shift_factor"]) == SCALES[family]


def test_of_an_autoencoder_alone_nothing_is_said(tmp_path):
    save_file(small.weights("vae", SIZES["vae"]), tmp_path / "a.safetensors")
    assert open_checkpoint(tmp_path / "a.safetensors").components["vae"].config == {"num_groups": 32}


def test_a_folder_s_own_scale_is_read(tmp_path):
    size = SIZES["vae"]
    theirs = small.written("vae", "diffusers", size, small.weights("vae", size))
    save_file(theirs, tmp_path / "diffusion_pytorch_model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"scaling_factor": 0.3611, "shift_factor": 0.1159}))
    config = open_checkpoint(tmp_path).components["vae"].config
    assert config == {"num_groups": 32, "scaling_factor": 0.3611, "shift_factor": 0.1159}
    (tmp_path / "config.json").write_text(json.dumps({"shift_factor": "much"}))
    with pytest.raises(BadInput, match="shift_factor is 'much'; a number expected"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("inner", ["rope_parameters", "text_config"])
@pytest.mark.parametrize("value", [5, "default", [1], True])
def test_fields_in_a_field_are_an_object(tmp_path, inner, value):
    with pytest.raises(BadInput, match=f"config.json: {inner} is .*; a JSON object expected"):
        component_config("qwen3", tmp_path / "config.json", SHAPES["qwen3"], {inner: value})


def test_fields_in_a_field_may_be_null(tmp_path):
    """Of rope_parameters transformers then takes the class's theta, which is not the released models'."""
    component_config("qwen3", tmp_path / "config.json", SHAPES["qwen3"], {"text_config": None})
    with pytest.raises(BadInput, match="rope_parameters lacks rope_theta"):
        component_config("qwen3", tmp_path / "config.json", SHAPES["qwen3"], {"rope_parameters": None})


@pytest.mark.parametrize(
    ("component", "field"),
    [
        ("anima", "text_embed_dim"),
        ("anima", "attention_head_dim"),
        ("ideogram4", "attention_head_dim"),
        ("minimax-h3", "attention_head_dim"),
        ("minimax-h3-vae", "decoder_num_layers"),
        ("qwen3", "num_hidden_layers"),
    ],
)
def test_sizes_that_the_weights_reveal_are_those_of_the_weights(tmp_path, component, field):
    with pytest.raises(BadInput, match=f"config.json: {field} is 7; the weights have "):
        component_config(component, tmp_path / "config.json", SHAPES[component], {field: 7})


def test_heads_of_qwen_image_s_controlnet_are_as_wide_as_its_axes(tmp_path):
    with pytest.raises(BadInput, match="attention_head_dim is 160; refsd computes 128 only"):
        component_config(
            "qwen-image-controlnet", tmp_path, SHAPES["qwen-image-controlnet"], {"attention_head_dim": 160}
        )


@pytest.mark.parametrize(("component", "field"), [("tae", "scaling_factor"), ("tae", "shift_factor")])
def test_latents_of_a_tiny_autoencoder_are_not_scaled(tmp_path, component, field):
    with pytest.raises(BadInput, match=f"{field} is 0.5; refsd computes"):
        component_config(component, tmp_path / "config.json", SHAPES[component], {field: 0.5})


@pytest.mark.parametrize(
    "component",
    ["flux", "chroma", "flux2", "flux3", "krea2", "qwen-image", "qwen-image-layered", "qwen-image21"],
)
def test_axes_of_the_heads_are_read(tmp_path, component):
    last = [8] if component in ("flux2", "flux3") else []
    read = functools.partial(component_config, component, tmp_path, SHAPES[component])
    assert read({"attention_head_dim": 24 + sum(last), "axes_dims_rope": [8, 10, 6, *last]})["axes_dim"] == [
        8,
        10,
        6,
        *last,
    ]
    for told in ({"attention_head_dim": 64}, {"axes_dims_rope": [8, 10, 6, *last]}, {"attention_head_dim": "128"}):
        with pytest.raises(BadInput, match=r"attention_head_dim is .*, but axes_dims_rope \["):
            read(told)
    with pytest.raises(BadInput, match=r"axes_dims_rope is .*; [34] whole numbers above 0 expected"):
        read({"axes_dims_rope": [64, 64]})


def test_heads_of_qwen_image_and_wan_are_read(tmp_path):
    shapes = qwen_image_shapes(QwenImageSize(96, 1, 24))
    given = {"attention_head_dim": 24, "axes_dims_rope": [8, 10, 6]}
    assert component_config("qwen-image", tmp_path, shapes, given)["axes_dim"] == [8, 10, 6]
    for axes in ([8, 10, -6], [8, 16], 128, [8, 10, 6.0]):
        for component, field in (("qwen-image", "axes_dims_rope"), ("lumina2", "axes_dim_rope")):
            with pytest.raises(BadInput, match=f"{field} is .*; 3 whole numbers above 0 expected"):
                component_config(component, tmp_path, SHAPES.get(component, shapes), {field: axes})
    with pytest.raises(BadInput, match=r"attention_head_dim is 24, but axes_dims_rope \[16, 56, 56\]"):
        component_config("qwen-image", tmp_path, shapes, {"attention_head_dim": 24})
    shapes = wan_shapes(WanSize(96, 1, 56))
    assert component_config("wan", tmp_path, shapes, {"attention_head_dim": 32})["axes_dim"] == [12, 10, 10]
    assert component_config("wan", tmp_path, shapes, {}) == {"eps": 1e-6}
    with pytest.raises(BadInput, match="attention_head_dim is 36; a whole number that divides 96 channels"):
        component_config("wan", tmp_path, shapes, {"attention_head_dim": 36})


@pytest.mark.parametrize(("there", "other"), [(True, False), (False, True), (True, None)])
def test_norms_of_wan_s_blocks_are_those_that_its_config_says(tmp_path, there, other):
    shapes = wan_shapes(WanSize(96, 1, 56, cross_norm=there))
    assert any("norm3" in name for name in shapes) == there
    component_config("wan", tmp_path, shapes, {"cross_attn_norm": there})
    with pytest.raises(
        BadInput, match=f"cross_attn_norm is {other}, but the blocks have {'a' if there else 'no'} norm"
    ):
        component_config("wan", tmp_path, shapes, {"cross_attn_norm": other})


def test_the_channels_of_sizes_and_crops_are_read(tmp_path):
    shapes = unet_shapes(UNetSize(32, (32, 64), context_dim=24, linear=True, label=16 + 6 * 32))
    given = {"use_linear_projection": True, "attention_head_dim": [1, 2]}
    for channels in (32, None):
        component_config("unet", tmp_path, shapes, given | {"addition_time_embed_dim": channels})
    for channels in (256, 0, "32", 32.0):
        with pytest.raises(BadInput, match=f"embed_dim is {channels!r}; label_emb takes 208 channels"):
            component_config("unet", tmp_path, shapes, given | {"addition_time_embed_dim": channels})
    component_config("unet", tmp_path, SHAPES["unet"], {"addition_time_embed_dim": 256})  # where nothing is added


def test_yarn_is_read(tmp_path):
    def read(layers=2, **given):
        return component_config("mistral", tmp_path, mistral_shapes(MistralSize(64, layers, 2, 1, vocab=50)), given)

    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    found = read(rope_parameters=rope)
    by_stretch = 0.1 * math.log(4) + 1
    assert (found["factor"], found["trained_length"], found["query_beta"]) == (4.0, 32, 0.0)
    assert (found["beta_fast"], found["beta_slow"], found["truncate"]) == (32.0, 1.0, True)
    assert found["attention_factor"] == pytest.approx(by_stretch)
    assert read(rope_parameters=rope | {"mscale": 2.0, "mscale_all_dim": 2.0})["attention_factor"] == 1.0
    assert read(rope_parameters={**rope, "llama_4_scaling_beta": 0.25})["query_beta"] == 0.25
    for field, wrong in (("factor", None), ("beta_fast", -1), ("truncate", 1), ("llama_4_scaling_beta", -0.1)):
        with pytest.raises(BadInput, match=f"{field} is "):
            read(rope_parameters={**rope, field: wrong})
    # What a file without config.json is: Ministral 3 3B is told by its depth.
    assert "factor" not in read() and read()["theta"] == 1e9
    alone = read(layers=26)
    assert (alone["theta"], alone["factor"], alone["query_beta"]) == (1e6, 16.0, 0.1)
    assert alone["attention_factor"] == 1.0
    assert "factor" not in read(layers=26, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
