"""Adapter files: every naming finds its layer, and what does not fit is said, all of it, in one line."""

import json

import numpy as np
import pytest
import tiny_adapters
from safetensors.numpy import save_file

from refsd.adapters import Merged
from refsd.kernels.adapters import DoRA, InputRotation, LoKr, LoRA
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint
from refsd.weights.adapter_names import PARTS, split
from refsd.weights.adapters import build_adapters, open_adapters
from refsd.weights.loras import load

TO_Q = "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
SHAPE = (32, 32)


@pytest.fixture
def checkpoint(single_file):
    return open_checkpoint(single_file)


@pytest.fixture
def read(checkpoint, tmp_path):
    def read(tensors, component="unet", metadata=None):
        path = tmp_path / "adapter.safetensors"
        tiny_adapters.save(path, tensors, metadata)
        file = open_adapters(path, checkpoint)
        shapes = checkpoint.components[component].weights.shapes
        built = build_adapters(file, component, shapes, lambda t: np.array(t.values(), np.float64))
        return {target.key: adapter for target, adapter in built.items()}

    return read


def lora(module, seed=0, shape=SHAPE):
    return {f"{module}.{part}": a for part, a in tiny_adapters.parts("lora", shape, seed).items()}


@pytest.mark.parametrize(
    "module",
    [
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
        "lora_unet_input_blocks_1_1_transformer_blocks_0_attn1_to_q",
        "lycoris_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
        "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
        "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
        "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q",
    ],
)
def test_namings_of_a_unet(module, read):
    adapters = read(lora(module))
    assert list(adapters) == [TO_Q]
    adapter = adapters[TO_Q]
    expected = tiny_adapters.parts("lora", SHAPE, 0)
    assert isinstance(adapter, LoRA) and adapter.scale == 1.5 / 2
    np.testing.assert_array_equal(adapter.down, expected["lora_down.weight"])
    np.testing.assert_array_equal(adapter.up, expected["lora_up.weight"])


@pytest.mark.parametrize(
    "module",
    [
        "lora_te_text_model_encoder_layers_1_mlp_fc1",
        "lora_te1_text_model_encoder_layers_1_mlp_fc1",
        "text_encoder.text_model.encoder.layers.1.mlp.fc1",
        "base_model.model.encoder.layers.1.mlp.fc1",
        "text_encoders.clip_l.transformer.text_model.encoder.layers.1.mlp.fc1",
    ],
)
def test_namings_of_clip(module, read):
    assert list(read(lora(module, shape=(96, 64)), "clip")) == ["text_model.encoder.layers.1.mlp.fc1"]


@pytest.mark.parametrize(
    ("down", "up"),
    [
        (".lora_down.weight", ".lora_up.weight"),
        (".lora_A.weight", ".lora_B.weight"),
        (".lora_A.default.weight", ".lora_B.default.weight"),
        (".lora.down.weight", ".lora.up.weight"),
        (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"),
    ],
)
def test_names_of_parts(down, up, read):
    """Without an alpha the scale is 1."""
    module = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    parts = tiny_adapters.parts("lora", SHAPE, 1)
    adapter = read({module + down: parts["lora_down.weight"], module + up: parts["lora_up.weight"]})[TO_Q]
    assert adapter.scale == 1 and np.array_equal(adapter.up, parts["lora_up.weight"])


@pytest.mark.parametrize(("layer", "key"), [("to_q", "to_q"), ("to_out", "to_out.0")])
def test_diffusers_processors(layer, key, read):
    at = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1"
    parts = tiny_adapters.parts("lora", SHAPE, 1)
    names = {f"{at}.processor.{layer}_lora.{side}.weight": parts[f"lora_{side}.weight"] for side in ("down", "up")}
    assert list(read(names)) == [f"input_blocks.1.1.transformer_blocks.0.attn1.{key}"]


@pytest.mark.parametrize("scaled", [True, False])
def test_scaled_oft(scaled, read):
    """OneTrainer's flag divides the free parameters of blocks of b by 2 sqrt(b - 1); here b is 4."""
    parts = tiny_adapters.parts("oft_peft", SHAPE, 1)
    free = parts["oft_R.weight"]
    at = f"diffusion_model.{TO_Q}.oft_R"
    flagged = read({f"{at}.weight": free, f"{at}.scaled_oft": np.array(scaled)})[TO_Q]
    plain = read({f"{at}.weight": free / np.float32(2 * np.sqrt(3) if scaled else 1)})[TO_Q]
    assert np.allclose(flagged.stages[0].blocks, plain.stages[0].blocks, rtol=0, atol=1e-7)
    assert not np.allclose(plain.stages[0].blocks, np.eye(4), atol=1e-3)


def test_textual_inversions_in_the_file_are_left_out_and_named(read):
    tensors = lora(f"diffusion_model.{TO_Q}") | {"bundle_emb.some style.clip_l": np.zeros((4, 64), np.float32)}
    with pytest.warns(UserWarning, match='textual inversions in it, "some style"'):
        assert list(read(tensors)) == [TO_Q]


def test_an_alpha_that_few_layers_lack_is_told(read):
    block = "diffusion_model.input_blocks.1.1.transformer_blocks.0"
    tensors = {}
    for layer in ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn2.to_q", "attn1.to_out.0", "attn2.to_out.0"):
        tensors |= lora(f"{block}.{layer}")
    first = next(name for name in tensors if name.endswith(".alpha"))
    del tensors[first]
    with pytest.warns(UserWarning, match="no alpha beside .*to_q.lora_down.*; the 5 other layers have one"):
        read(tensors)


def test_every_part_of_a_name_is_split_off():
    for end, part in PARTS.items():
        assert split(f"lora_unet_x{end}") == ("lora_unet_x", part)
    assert split("lora_unet_x.lora_sideways.weight") == ("lora_unet_x.lora_sideways", "weight")
    assert split("nothing") is None


def test_the_first_unknown_names_are_listed(read):
    unknown = [f"lora_unet_up_blocks_{i}_nowhere.alpha" for i in range(40)]
    with pytest.raises(BadInput) as refused:
        read(lora(f"diffusion_model.{TO_Q}") | {name: np.float32(1) for name in unknown})
    said = str(refused.value)
    assert "40 of 43 tensors" in said and all(name in said for name in unknown[:3]) and "\n" not in said
    assert said.endswith(" and 37 more") and len(said) < 500


def test_a_table_is_no_layer(read):
    """Nothing would apply it: it must not pass in silence."""
    at = "text_encoder.text_model.embeddings.token_embedding"
    with pytest.raises(BadInput, match="3 of 3 tensors name no layer"):
        read(lora(at, shape=(50, 64)), "clip")


def test_misfits_are_listed(read):
    good = lora(f"diffusion_model.{TO_Q}")
    to_k = "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_k"
    tensors = good | {f"{to_k}.lora_down.weight": good[f"diffusion_model.{TO_Q}.lora_down.weight"]}
    tensors |= lora("diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_v", shape=(32, 31))
    tensors |= {"diffusion_model.input_blocks.1.1.proj_in.w_norm": np.ones(32, np.float32)}
    with pytest.raises(BadInput, match="3 adapters do not fit") as refused:
        read(tensors)
    said = str(refused.value)
    assert "attn1.to_k: down make no adapter" in said and "attn1.to_v: down [2, 31] for [2, 32]" in said
    assert "proj_in: norm for a weight [32, 32, 1, 1]" in said and "\n" not in said
    tensors |= lora("diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_q", shape=(32, 31))
    with pytest.raises(BadInput, match=r"4 adapters do not fit: [^;]*; [^;]*; [^;]* and 1 more$"):
        read(tensors)


def test_a_bias_that_is_not_there(read):
    diffs = {f"diffusion_model.{TO_Q}.diff_b": np.ones(32, np.float32)}
    with pytest.raises(BadInput, match="bias that the layer does not have"):
        read(diffs)


def test_a_layer_named_twice(read):
    diffusers = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    with pytest.raises(BadInput, match="3 of 6 tensors come twice"):
        read(lora(f"diffusion_model.{TO_Q}") | lora(diffusers))


def test_what_is_no_number_or_no_weight(read):
    tensors = lora(f"diffusion_model.{TO_Q}")
    tensors[f"diffusion_model.{TO_Q}.lora_up.weight"][3, 1] = np.nan
    with pytest.raises(BadInput, match="1 values of up are NaN or infinite"):
        read(tensors)
    tensors[f"diffusion_model.{TO_Q}.lora_up.weight"] = np.ones((32, 2), np.int32)
    with pytest.raises(BadInput, match="up is i32"):
        read(tensors)


@pytest.mark.parametrize("kind", tiny_adapters.LAYER_KINDS)
@pytest.mark.parametrize("layer", [TO_Q, "input_blocks.1.0.in_layers.2", "input_blocks.1.1.proj_in"])
def test_any_part_of_another_shape_is_refused_in_one_line(kind, layer, read, checkpoint):
    """An empty, a scalar, a transposed or a longer part: BadInput, never a traceback or another adapter."""
    shape = checkpoint.components["unet"].weights.shapes[f"{layer}.weight"]
    good = {f"diffusion_model.{layer}.{part}": array for part, array in tiny_adapters.parts(kind, shape, 3).items()}
    if layer == TO_Q:
        good.pop(f"diffusion_model.{layer}.diff_b", None)
    assert list(read(good)) == [layer]
    for name, array in good.items():
        for bad in (
            np.zeros((0, *array.shape[1:])),
            np.zeros(()),
            np.zeros((3, 5, 7)),
            np.zeros((*array.shape, 3)),
        ):
            if bad.size == array.size:
                continue
            with pytest.raises(BadInput) as refused:
                read(good | {name: bad.astype(array.dtype)})
            assert "\n" not in str(refused.value)
        without = {other: value for other, value in good.items() if other != name}
        if not name.endswith(("alpha", "dora_scale", "rescale", "mid.weight", "diff", "diff_b")):
            with pytest.raises(BadInput):
                read(without)


PEFT = "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"


def peft_file(tmp_path, tensors, settings):
    save_file(
        {name: np.ascontiguousarray(a) for name, a in tensors.items()}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    return tmp_path / "adapter_model.safetensors"


def build(path, checkpoint):
    shapes = checkpoint.components["unet"].weights.shapes
    file = open_adapters(path, checkpoint)
    built = build_adapters(file, "unet", shapes, lambda t: np.array(t.values(), np.float64))
    return {target.key: adapter for target, adapter in built.items()}


def test_peft_keeps_alpha_beside_the_file(checkpoint, tmp_path):
    parts = tiny_adapters.parts("lora", SHAPE, 1)
    tensors = {f"{PEFT}.lora_A.weight": parts["lora_down.weight"], f"{PEFT}.lora_B.weight": parts["lora_up.weight"]}
    tensors[f"{PEFT}.lora_magnitude_vector"] = np.ones(32, np.float32)
    for settings, scale in (
        ({"lora_alpha": 6, "r": 2}, 3),
        ({"lora_alpha": 6, "r": 2, "use_rslora": True}, 6 / np.sqrt(2)),
    ):
        path = peft_file(tmp_path, tensors, {"peft_type": "LORA", **settings})
        adapter = build(path, checkpoint)[TO_Q]
        assert isinstance(adapter, DoRA) and adapter.inner.scale == pytest.approx(scale) and adapter.eps == 0


REFUSED = [
    ({"lora_alpha": "many"}, "lora_alpha is 'many'; a number from -1e\\+09 to 1e\\+09 expected"),
    ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
    ({"r": True}, "r is True"),
    ({"bias": "all"}, "bias is 'all': refsd does not compute that; merge the adapter with PEFT"),
    ({"bias": "lora_only"}, "bias is 'lora_only'"),
    ({"modules_to_save": ["conv_out"]}, "modules_to_save"),
    ({"target_parameters": ["x"]}, "target_parameters"),
    ({"layer_replication": [[0, 2]]}, "layer_replication"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
    ({"kasa_config": {"a": 1}}, "kasa_config"),
    ({"use_bdlora": {"nblocks": 2}}, "use_bdlora"),
    ({"use_qalora": True}, "use_qalora"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4': PEFT takes the beginning out"),
    ({"init_lora_weights": "OLoRA"}, "init_lora_weights is 'OLoRA'"),
    ({"init_lora_weights": "corda"}, "init_lora_weights is 'corda'"),
    ({"peft_type": "HRA"}, "peft_type is 'HRA'; refsd reads LORA, LOHA"),
    ({"peft_type": None}, "peft_type is None"),
    ({"use_dora": False, "alpha_pattern": [3]}, "alpha_pattern: at most 4096 patterns"),
    ({"alpha_pattern": {"to_q": "3"}}, "alpha_pattern: 'to_q' is '3'; a number"),
    ({"rank_pattern": {"to_q": 0}}, "rank_pattern: 'to_q' is 0; a number from 1"),
    ({"alpha_pattern": {"(a+)+$": 3}}, r"alpha_pattern: '\(a\+\)\+\$' is no pattern that refsd reads"),
    ({"alpha_pattern": {".*.*.*b": 3}}, "no pattern that refsd reads"),
    ({"alpha_pattern": {"[": 3}}, "no pattern that refsd reads"),
    ({"alpha_pattern": {"a" * 301: 3}}, "no pattern that refsd reads"),
    ({"feedforward_modules": 3}, "feedforward_modules is 3"),
    ({"feedforward_modules": "(a*)*"}, "feedforward_modules: .* no pattern"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED)
def test_settings_that_are_refused_by_name(settings, said, checkpoint, tmp_path):
    parts = tiny_adapters.parts("lora", SHAPE, 1)
    tensors = {f"{PEFT}.lora_A.weight": parts["lora_down.weight"], f"{PEFT}.lora_B.weight": parts["lora_up.weight"]}
    with pytest.raises(BadInput, match=said) as refused:
        build(peft_file(tmp_path, tensors, {"peft_type": "LORA", **settings}), checkpoint)
    assert "adapter_config.json: " in str(refused.value) and "\n" not in str(refused.value)


def test_settings_of_training_and_of_which_modules_count_for_nothing(checkpoint, tmp_path):
    parts = tiny_adapters.parts("lora", SHAPE, 1)
    tensors = {f"{PEFT}.lora_A.weight": parts["lora_down.weight"], f"{PEFT}.lora_B.weight": parts["lora_up.weight"]}
    settings = {
        "init_lora_weights": "gaussian",
        "exclude_modules": ["x"],
        "layers_to_transform": [3],
        "bias": "none",
    }
    settings |= {"fan_in_fan_out": True, "lora_dropout": 0.5, "modules_to_save": None, "eva_config": {"rho": 2}}
    path = peft_file(tmp_path, tensors, {"peft_type": "LORA", "r": 2, "lora_alpha": 6, **settings})
    assert build(path, checkpoint)[TO_Q].scale == 3
    path = peft_file(tmp_path, tensors, {"peft_type": "LORA", "r": 2, "use_dora": True})
    with pytest.raises(BadInput, match="use_dora in its PEFT settings, and no lora_magnitude_vector"):
        build(path, checkpoint)


@pytest.mark.parametrize(
    ("patterns", "scale"),
    [
        ({"to_q": 8}, 4),
        ({"to_k": 8}, 3),
        ({"attn1.to_q": 8, "to_q": 10}, 4),
        ({"q": 8}, 3),
        ({r"down_blocks\..*to_[qk]": 8}, 4),
        ({"^down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": 8}, 4),
        ({"^attn1.to_q": 8}, 3),
        ({"to_v|to_q": 8}, 4),
        ({"to_q": -8}, -4),
        ({"to_q": 0}, 0),
    ],
)
@pytest.mark.parametrize("metadata", [False, True])
def test_alpha_pattern(patterns, scale, metadata, checkpoint, read, tmp_path):
    """PEFT's: the first pattern that the end of a module's name is, within the component."""
    parts = tiny_adapters.parts("lora", SHAPE, 1)
    at = PEFT.replace("base_model.model.", "unet.") if metadata else PEFT
    tensors = {f"{at}.lora_A.weight": parts["lora_down.weight"], f"{at}.lora_B.weight": parts["lora_up.weight"]}
    settings = {"r": 2, "lora_alpha": 6, "alpha_pattern": patterns}
    if metadata:
        told = {f"unet.{name}": value for name, value in settings.items()}
        adapters = read(tensors, metadata={"lora_adapter_metadata": json.dumps(told)})
    else:
        adapters = build(peft_file(tmp_path, tensors, {"peft_type": "LORA", **settings}), checkpoint)
    assert adapters[TO_Q].scale == scale


def test_a_bias_of_its_own(checkpoint, tmp_path):
    """PEFT's lora_bias; a layer without a bias has none to merge it into."""
    parts, bias = tiny_adapters.parts("lora", SHAPE, 1), np.arange(32, dtype=np.float32)
    tensors = {f"{PEFT}.lora_A.weight": parts["lora_down.weight"], f"{PEFT}.lora_B.weight": parts["lora_up.weight"]}
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "lora_bias": True}
    path = peft_file(tmp_path, tensors | {f"{PEFT}.lora_B.bias": bias}, settings)
    adapter = build(path, checkpoint)[TO_Q]
    np.testing.assert_array_equal(adapter.bias_delta(None, 0.5), 1.5 * bias)
    weights = checkpoint.components["unet"].weights
    arithmetic = Arithmetic(FLOAT64)
    with pytest.raises(BadInput, match="has no bias, and its adapter one: it cannot be merged"):
        Merged(weights, load([(open_adapters(path, checkpoint), 1.0)], "unet", weights, arithmetic))


def test_pefts_lokr_and_oft_follow_their_settings(checkpoint, tmp_path):
    parts = tiny_adapters.parts("lokr", SHAPE, 1)
    tensors = {f"{PEFT}.{part}": parts[part] for part in ("lokr_w1", "lokr_w2")}
    settings = {"peft_type": "LOKR", "alpha": 6, "r": 8}
    adapter = build(peft_file(tmp_path, tensors, settings), checkpoint)[TO_Q]
    assert isinstance(adapter, LoKr) and adapter.scale == 0.75
    tensors = {f"{PEFT}.{part}": a for part, a in tiny_adapters.parts("oft_peft", SHAPE, 1).items()}
    turned = []
    for settings in (
        {"use_cayley_neumann": False},
        {"num_cayley_neumann_terms": 5},
        {"num_cayley_neumann_terms": 30},
    ):
        adapter = build(peft_file(tmp_path, tensors, {"peft_type": "OFT", **settings}), checkpoint)[TO_Q]
        assert isinstance(adapter, InputRotation)
        turned.append(adapter.stages[0].blocks)
    assert np.abs(turned[1] - turned[2]).max() > 1e-3
    np.testing.assert_allclose(turned[0], turned[2].swapaxes(1, 2), atol=1e-3)
    settings = {"peft_type": "OFT", "r": 0, "oft_block_size": 4, "coft": True, "eps": 1e-4}
    blocks = build(peft_file(tmp_path, tensors, settings), checkpoint)[TO_Q].stages[0].blocks
    assert 0 < np.abs(blocks - np.eye(4)).max() < 1e-4


def test_pefts_ia3_says_which_modules_scale_their_input(checkpoint, tmp_path):
    conv = "base_model.model.down_blocks.0.attentions.0.proj_in"
    tensors = {f"{conv}.ia3_l": np.full((1, 32, 1, 1), 2, np.float32)}
    for modules, on_input in (([], False), (["proj_in"], True), (["proj"], False)):
        path = peft_file(tmp_path, tensors, {"peft_type": "IA3", "feedforward_modules": modules})
        adapter = build(path, checkpoint)["input_blocks.1.1.proj_in"]
        assert adapter.on_input == on_input and adapter.on_bias != on_input


def test_diffusers_keeps_alpha_in_the_metadata(read):
    parts = tiny_adapters.parts("lora", SHAPE, 1)
    module = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    tensors = {
        f"{module}.lora_A.weight": parts["lora_down.weight"],
        f"{module}.lora_B.weight": parts["lora_up.weight"],
    }
    metadata = {
        "lora_adapter_metadata": json.dumps({"unet.r": 2, "unet.lora_alpha": 8, "text_encoder.lora_alpha": 5})
    }
    assert read(tensors, metadata=metadata)[TO_Q].scale == 4
    with pytest.raises(BadInput, match="not JSON"):
        read(tensors, metadata={"lora_adapter_metadata": "{"})


def test_a_checkpoint_where_an_adapter_is_meant(checkpoint, single_file):
    with pytest.raises(BadInput, match="no part of an adapter"):
        open_adapters(single_file, checkpoint)
