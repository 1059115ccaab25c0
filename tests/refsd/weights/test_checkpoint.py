"""One checkpoint in every layout is the same tensors; what does not fit is one line that lists it all."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from refsd.cli.parts import FLAGS
from refsd.models.unet.tensors import UNetSize
from refsd.numerics.errors import BadInput
from refsd.weights import check, open_checkpoint
from refsd.weights.checkpoint import PART_FLAGS, survey


def assert_holds(checkpoint, parts):
    assert checkpoint.family.name == ("sd15" if "unet" in parts else "parts")
    assert checkpoint.components.keys() == parts.keys()
    for part, arrays in parts.items():
        weights = checkpoint.components[part].weights
        assert weights.keys() == arrays.keys()
        assert weights.shapes == {name: array.shape for name, array in arrays.items()}
        for name, array in arrays.items():
            np.testing.assert_array_equal(weights[name].values(), array)


def test_single_file(single_file, parts):
    checkpoint = open_checkpoint(single_file)
    assert_holds(checkpoint, parts)
    assert checkpoint.layout == "ldm"
    assert checkpoint.extras == ["alphas_cumprod", "model_ema.decay"]
    assert len(checkpoint.components["clip"].extras) == 1
    assert {name: component.config for name, component in checkpoint.components.items()} == {
        "unet": {"num_heads": 8, "num_groups": 32},
        "vae": {"num_groups": 32, "scaling_factor": 0.18215, "shift_factor": 0.0},
        "clip": {"num_heads": 1, "hidden_act": "quick_gelu", "eps": 1e-5},
    }
    assert checkpoint.components["unet"].size == UNetSize(32, (32, 64), (0,), 1, 24)


def test_folder(folder, parts):
    checkpoint = open_checkpoint(folder)
    assert_holds(checkpoint, parts)
    assert checkpoint.layout == "diffusers"
    assert {name: component.config for name, component in checkpoint.components.items()} == {
        "unet": {"num_heads": 4, "num_groups": 16},
        "vae": {"num_groups": 8, "scaling_factor": 0.5, "shift_factor": 0.0},
        "clip": {"num_heads": 2, "hidden_act": "quick_gelu", "eps": 1e-5},
    }


@pytest.mark.parametrize(("part", "name"), [("unet", "unet"), ("vae", "vae"), ("clip", "text_encoder")])
def test_folder_of_one_component(folder, parts, part, name):
    assert_holds(open_checkpoint(folder / name), {part: parts[part]})


def test_gguf(single, parts, as_gguf):
    assert_holds(open_checkpoint(as_gguf(single)), parts)


def test_gguf_whose_unet_has_no_prefix(single, parts, as_gguf, prefixes):
    arrays = {name.removeprefix(prefixes["unet"]): array for name, array in single.items()}
    assert_holds(open_checkpoint(as_gguf(arrays)), parts)


@pytest.mark.parametrize("part", ["unet", "vae", "clip"])
def test_a_component_alone(parts, part, as_safetensors):
    path = as_safetensors(parts[part])
    assert_holds(open_checkpoint(path), {part: parts[part]})


def test_one_error_lists_all(single, as_safetensors, prefixes):
    unet, vae = prefixes["unet"], prefixes["vae"]
    del single[f"{unet}time_embed.0.bias"]
    del single[f"{vae}encoder.mid.attn_1.q.weight"]
    single[f"{unet}out.2.bias"] = np.ones(7, np.float32)
    single[f"{vae}decoder.norm_out.bias"] = np.ones(32, np.int32)
    single[f"{unet}input_blocks.1.0.more.weight"] = np.ones(7, np.float32)
    single["something.else"] = np.ones(1, np.float32)
    path = as_safetensors(single)
    with pytest.raises(BadInput) as error:
        open_checkpoint(path)
    message = str(error.value)
    for part in (
        "a.safetensors: ",
        '2 missing: unet "time_embed.0.bias" [128], vae "encoder.mid.attn_1.q.weight" [64, 64, 1, 1]',
        f'2 unused: unet "{unet}input_blocks.1.0.more.weight", "something.else"',
        '2 misshapen: unet "out.2.bias" [7] for [4], vae "decoder.norm_out.bias" of type i32 for a float type',
    ):
        assert part in message
    assert "\n" not in message


def test_ten_of_many_are_listed(parts, as_safetensors):
    arrays = {name: array for name, array in parts["clip"].items() if "layers.1" not in name}
    kept = [f"text_model.encoder.layers.1.layer_norm{n}.{leaf}" for n in (1, 2) for leaf in ("weight", "bias")]
    arrays |= {name: np.ones(64, np.float32) for name in kept}
    path = as_safetensors(arrays)
    with pytest.raises(BadInput) as error:
        open_checkpoint(path)
    message = str(error.value)
    assert "12 missing" in message
    assert message.partition(": the tensors do not fit")[2].count("layers.1.") == 10
    assert message.endswith(", ...")


def test_check_takes_one_component(single, parts, as_safetensors, prefixes):
    del single[f"{prefixes['vae']}quant_conv.bias"]
    path = as_safetensors(single)
    components = survey(path).components
    check(components["unet"])
    with pytest.raises(BadInput, match=r'1 missing: vae "quant_conv.bias"'):
        check(components["vae"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused_when_read(single, bad, as_safetensors, prefixes):
    name = f"{prefixes['unet']}out.2.weight"
    single[name] = single[name].copy()
    single[name][0, 1, 2, 0] = bad
    path = as_safetensors(single)
    weights = open_checkpoint(path).components["unet"].weights
    assert np.isfinite(weights["out.2.bias"].values()).all()
    for _ in range(2):
        with pytest.raises(BadInput, match=rf'a\.safetensors: tensor "{name}": 1 of its values'):
            weights["out.2.weight"]


def test_values_are_looked_at_once(single_file, monkeypatch):
    looked = []
    monkeypatch.setattr("refsd.weights.component.not_finite", lambda tensor: looked.append(tensor.shape))
    weights = open_checkpoint(single_file).components["unet"].weights
    assert looked == []
    for _ in range(3):
        weights["out.2.bias"]
    assert looked == [(4,)]


def test_a_few_layers_of_another_denoiser_are_foreign(single, as_safetensors):
    name = "transformer.single_transformer_blocks.0.proj_out.weight"
    with pytest.raises(BadInput, match=f"1 foreign tensor: {name}, of (FLUX.1 or Chroma|Chroma or FLUX.1)"):
        open_checkpoint(as_safetensors(single | {name: np.ones(1, np.float32)}))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "unet.down_blocks.0.resnets.0.conv1.weight",
            'ambiguous: unet in ldm.* and unet in diffusers.* under "unet."',
        ),
        ("conditioner.embedders.0.transformer.text_model.final_layer_norm.bias", "ambiguous: clip .* and clip "),
    ],
)
def test_two_models_in_one_file_are_ambiguous(single, name, says, as_safetensors):
    path = as_safetensors(single | {name: np.ones((2, 2), np.float32)})
    with pytest.raises(BadInput, match=says) as error:
        open_checkpoint(path)
    assert "split the file, name the parts" in str(error.value)


def test_what_refsd_does_not_run_is_named(single, as_safetensors):
    path = as_safetensors(single | {"lora_unet_down_blocks_0.lora_up.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(BadInput, match="refsd does not run a LoRA for no model"):
        open_checkpoint(path)


def test_linear_proj_in_is_sd2(single, as_safetensors):
    arrays = {name: a[:, :, 0, 0].copy() if name.endswith("proj_in.weight") else a for name, a in single.items()}
    family = survey(as_safetensors(arrays)).family
    assert family is not None
    assert family.name == "sd2"
    assert "proj_in are linear" in family.why


@pytest.mark.parametrize(("flag", "part"), [("--vae", "vae"), ("--clip_l", "clip"), ("--diffusion-model", "unet")])
def test_a_part_takes_the_place_of_the_model_s(single_file, parts, as_safetensors, flag, part):
    other = {name: array + 1 for name, array in parts[part].items()}
    checkpoint = open_checkpoint(single_file, {flag: as_safetensors(other)})
    assert_holds(checkpoint, {**parts, part: other})


def test_parts_alone_make_a_model(parts, prefixes, tmp_path):
    flags = {"--diffusion-model": "unet", "--vae": "vae", "--clip_l": "clip"}
    files = {flag: tmp_path / f"{part}.safetensors" for flag, part in flags.items()}
    for flag, part in flags.items():
        save_file(parts[part], files[flag])
    assert_holds(open_checkpoint(None, files), parts)


def test_the_command_line_has_every_part():
    assert tuple(PART_FLAGS) == FLAGS


def test_a_part_that_is_none(parts, as_safetensors):
    with pytest.raises(BadInput, match="--t5xxl takes t5; the file holds vae"):
        open_checkpoint(None, {"--t5xxl": as_safetensors(parts["vae"])})
    with pytest.raises(BadInput, match="no model: name a file or a folder, or its parts"):
        open_checkpoint(None)


def test_nothing_known(as_safetensors):
    path = as_safetensors({"a.b": np.ones(2)})
    with pytest.raises(BadInput, match=r'no model that refsd knows in its 1 tensors \("a.b", ...\)'):
        open_checkpoint(path)


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(BadInput, match="expected diffusion_pytorch_model"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(BadInput, match=r"pytorch_model\.bin: a text file; a \.safetensors, \.gguf or torch file"):
        open_checkpoint(tmp_path)


def test_a_component_twice(folder):
    unet = folder / "unet" / "diffusion_pytorch_model.fp16.safetensors"
    (folder / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(unet.read_bytes())
    with pytest.raises(BadInput, match="unet is there twice"):
        open_checkpoint(folder)


HOSTILE = [
    (b"", "an empty file: is the download complete\\?; JSON expected"),
    (b"{", "not JSON"),
    (b"\xff", "not UTF-8"),
    (b"[1]", "an object expected"),
    (b"[" * 200_000, "not JSON"),
    (b'{"a":' * 100_000, "not JSON"),
    (b'{"norm_num_groups": ' + b"9" * 6000 + b"}", "not JSON"),
    (b'{"norm_num_groups": 1e999}', "norm_num_groups is inf"),
    (b'{"norm_num_groups": 100000000000000000000000000000000000000000000000000}', "divides 32"),
    (b'{"norm_num_groups": 5}', "divides 32"),
    (b'{"norm_num_groups": 0}', "divides 32"),
    (b'{"norm_num_groups": -32}', "divides 32"),
    (b'{"norm_num_groups": "32"}', "'32'"),
    (b'{"norm_num_groups": true}', "True"),
    (b'{"norm_num_groups": [32]}', r"norm_num_groups is \[32\]"),
    (b'{"norm_num_groups": {}}', r"norm_num_groups is \{\}"),
    (b'{"attention_head_dim": []}', r"attention_head_dim is \[\]; .* one for each of 2 levels"),
    (b'{"attention_head_dim": [4, 8, 8]}', r"attention_head_dim is \[4, 8, 8\]"),
    (b'{"attention_head_dim": [4, 7]}', "divide the channels of the levels with attention: 32, 64"),
    (b'{"attention_head_dim": [4, -8]}', r"attention_head_dim is \[4, -8\]"),
    (b'{"attention_head_dim": [4, true]}', r"attention_head_dim is \[4, True\]"),
    (b'{"act_fn": "gelu"}', "act_fn is 'gelu'; refsd computes silu"),
    (b'{"act_fn": {"a": 1}}', r"act_fn is \{'a': 1\}; refsd computes silu"),
    (b'{"norm_eps": NaN}', "norm_eps is nan"),
]


@pytest.mark.parametrize(("content", "says"), HOSTILE)
def test_hostile_config(folder, content, says):
    (folder / "unet" / "config.json").write_bytes(content)
    with pytest.raises(BadInput, match=says) as error:
        open_checkpoint(folder)
    assert "config.json" in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("scale", ["0", "-1", '"x"', "NaN", "Infinity", "1e300", "[1]", "true"])
def test_hostile_scaling_factor(folder, scale):
    (folder / "vae" / "config.json").write_text(f'{{"scaling_factor": {scale}}}')
    with pytest.raises(BadInput, match="scaling_factor is"):
        open_checkpoint(folder)


def test_clip_config_in_a_whole_clip(folder):
    config = {"text_config": {"num_attention_heads": 16}}
    (folder / "text_encoder" / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(folder).components["clip"].config["num_heads"] == 16
