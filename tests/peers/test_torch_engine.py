"""torch as an engine: every case that it takes passes; a wrong one does not."""

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from refsd.cases import CASES, select
from refsd.engines.reference import Reference
from refsd.engines.torch.devices import check_device
from refsd.engines.torch.engine import find
from refsd.golden import conform
from refsd.golden.engine import EngineFailure
from refsd.golden.operations import OPERATIONS
from refsd.judges import judges
from refsd.networks.cases import every
from refsd.numerics.profiles import TORCH_BF16, TORCH_F16, TORCH_F32
from refsd.weights import recipes

pytestmark = pytest.mark.peer

# Anima's original needs torchvision: tests/peers/test_models_anima.py calls it without the engine.
MODELS = [case.name for case in select() if case.model is not None and case.op != "model/anima"]
# Of 4,096 tokens, or a megapixel: `refsd conform torch` asks them too.
_LARGE = {name for name in MODELS if name.endswith("/1024x1024")} | {"vae/flux/decoder"}
PICTURES = ("model/unet", "model/controlnet", "model/vae-encoder", "model/vae-decoder", "model/esrgan")
OPS = [name for name, case in CASES.items() if case.op in OPERATIONS]
# Without AVX-512 torch is many times slower in float16 and bfloat16 than in float32: there it is asked of these,
# and in channels last of all pictures but the quiet ones, in float32 alone.
_WIDE = ("tae/", "minimax-h3-vae/", "vae/flux2/", "qwen3/zimage", "mistral/flux2")
_FAST_HALVES = torch.backends.cpu.get_cpu_capability() == "AVX512"


def _asked(engines, without_halves: bool):
    return [engine for engine in engines.values() if _FAST_HALVES or not (without_halves and "16" in engine.name)]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        name = f"{model.family}-{model.type}"
        path = folder / (name if layout == "diffusers" else f"{name}.safetensors")
        return path if path.exists() else recipes.make(model, path, layout)

    return give


@pytest.fixture(scope="module")
def engines(model_files):
    return {found.name: found.engine for found in find(model_files=model_files)}


@pytest.fixture(scope="module")
def runner(model_files, waivers):
    truth = Reference(model_files=model_files)
    return conform.Runner(judges(model_files), lambda case: truth.run(case, case.realize()), waivers)


def test_each_variant_says_what_it_rounds(engines):
    case = CASES[OPS[0]]
    assert {name: engine.numerics(case) for name, engine in engines.items()} == {
        "torch": TORCH_F32,
        "torch-f16": TORCH_F16,
        "torch-bf16": TORCH_BF16,
    }


def _marked(names):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in _LARGE)) for name in names]


# Qwen2.5-VL's tower has no folder of its own in transformers; test_models_qwen_vision.py holds it to the original.
_APART = "qwen2.5-vl-mmproj/"


@pytest.mark.parametrize("name", _marked(name for name in MODELS if not name.startswith(_APART)))
def test_models(engines, runner, name):
    asked = _asked(engines, name.startswith(_WIDE))
    results = conform.run(runner, asked, [CASES[name]])
    taken = [r for r in results if r.status != "refused"]
    assert [(r.engine, r.status, r.reason) for r in taken if not r.conforms] == []
    rounded = [r for r in results if r.status == "refused"]
    if CASES[name].model.type in recipes.FLOAT_TYPES:
        why = ("before embedding", "too coarse")
        assert all(r.engine != "torch" and any(reason in r.reason for reason in why) for r in rounded)
    else:
        assert len(rounded) == len(asked), "diffusers reads no blocks from a folder"


@pytest.mark.parametrize("op", ["model/flux", "model/qwen3"])
def test_weights_that_are_missing_are_an_error(tmp_path, op):
    """diffusers and transformers would draw them at random, and say so in a warning."""
    case = next(CASES[name] for name in MODELS if CASES[name].op == op)
    folder = recipes.make(case.model, tmp_path / "model", "diffusers")
    (file,) = folder.glob("*/*.safetensors")
    tensors = load_file(file)
    gone = min(tensors)
    del tensors[gone]
    save_file(tensors, file, {"format": "pt"})
    engine = find(model_files=lambda model, layout: folder)[0].engine
    with pytest.raises(EngineFailure, match=r"1 missing keys, first \S*" + gone.split(".")[-2]):
        engine.run(case, case.realize())


# Torch has no block types, no attention in int8, and no product of two factors in 4 bits on a CPU.
REFUSED = {"dequantize", "linear_nvfp4", "linear_w4a8", "linear_w4a4", "linear_svdquant", "attention_int8"}
REFUSED |= {"linear_mxfp8", "linear_mxfp4", "linear_fp8_blocks"}
# Of cases of linear_int8, conv2d_int8 and linear_w4a16.
OF_CASES = {
    "torch rotates no activations",
    "torch's product of int8 has no zero points",
    "torch's product of int8 has no codes of results",
    "torch has no such product of u8",
    "torch's product of 4 bits takes whole groups of 32 to 256, on a CPU",
}


def test_float32_takes_every_other_operation(engines):
    refused = {(CASES[name].op, engines["torch"].refuses(CASES[name])) for name in OPS}
    assert {op for op, why in refused if why and why not in OF_CASES} == REFUSED


@pytest.mark.parametrize("op", sorted({CASES[name].op for name in OPS} - REFUSED))
def test_operations(engines, runner, op):
    results = conform.run(runner, list(engines.values()), [CASES[name] for name in OPS if CASES[name].op == op])
    assert [(r.engine, r.case, r.reason) for r in results if not r.conforms] == []
    refused = {r.reason for r in results if r.engine == "torch" and r.status not in ("pass", "waived")}
    assert refused <= OF_CASES


COMPOSED = (
    *("modulate", "adaptive_layer_norm", "gated_add", "quick_gelu", "swiglu", "swiglu_oai"),
    *("softmax", "l2_norm", "add", "multiply"),
)


@pytest.mark.parametrize("name", [name for name in OPS if CASES[name].op in COMPOSED])
def test_an_honest_run_rounds_where_torch_does(engines, name):
    """Bit for bit, but for the last bit of an exponential or a norm, and what one exponential flushes."""
    case = CASES[name]
    for numerics in (TORCH_F16, TORCH_BF16):
        honest = Reference(numerics).run(case, case.realize())["y"].astype(np.float32)
        theirs = engines[numerics.name].run(case, case.realize())["y"].astype(np.float32)
        same = np.isclose(honest, theirs, rtol=0, atol=2.0**-100)
        assert np.mean(same) >= (0.98 if case.op == "adaptive_layer_norm" else 0.999), numerics.name


def test_a_unet_with_its_controlnet_or_an_ip_adapter_is_refused(engines):
    """It would answer without the hint."""
    assert "ControlNet are two modules" in engines["torch"].refuses(CASES["lone/sd15-control/unet/between"])
    refused = engines["torch"].refuses(CASES["lone/sd15-ip-adapter/unet/image-prompt"])
    assert "an IP-Adapter into its UNet" in refused


def test_cached_references_are_refused(engines):
    refused = engines["torch"].refuses(CASES["lone/flux2-klein/flux2/cached-references"])
    assert "another order" in refused


def test_half_precision_refuses_a_time_that_it_rounds(engines):
    case = CASES["flux3-distilled/flux3/jump"]
    third = msgspec.structs.replace(case, inputs=case.inputs | {"target_timesteps": every(0.3)})
    assert engines["torch-bf16"].refuses(case) is None and engines["torch"].refuses(third) is None
    assert "rounds target_timesteps to bfloat16" in engines["torch-bf16"].refuses(third)


def test_half_precision_refuses_an_attention_that_it_has_not(engines):
    sinks = CASES["attention/f32/sinks-b2-l20-j33-h3-d32"]
    assert "rounds the scores" in engines["torch-f16"].refuses(sinks)
    assert engines["torch"].refuses(sinks) is None


def test_another_eps_is_seen(engines, runner, monkeypatch):
    """The quiet UNet case is there to find a wrong eps."""
    true = torch.nn.functional.group_norm
    monkeypatch.setattr(torch.nn.functional, "group_norm", lambda x, groups, w, b, eps: true(x, groups, w, b, 1e-6))
    results = conform.run(runner, [engines["torch"]], [CASES["sd15/unet/quiet"]])
    assert [r.status for r in results] == ["fail"]


def test_a_missing_bias_is_placed_and_named(engines, runner):
    """In one layer of a transformer, by the taps of its layers."""
    engine, case = engines["torch"], CASES["sd35-large/mmdit/last-step"]
    layer = engine._model(case).get_submodule("transformer_blocks.0.attn.to_out.0")
    right = layer.bias.data
    layer.bias.data = torch.zeros_like(right)
    try:
        (result,) = conform.run(runner, [engine], [case])
    finally:
        layer.bias.data = right
    assert (result.status, result.place) == ("fail", "joint_blocks.0.x_block.attn.proj"), result.reason
    assert result.causes[0] == "bias missing"


@pytest.mark.parametrize(
    ("name", "module", "place"),
    [
        ("sd21/unet/quiet", "mid_block.resnets.1.norm2", "middle_block.2.out_layers.0"),
        ("clip-l/clip/ended", "encoder.layers.1.layer_norm1", "text_model.encoder.layers.1.layer_norm1"),
    ],
)
def test_an_eps_of_one_norm_is_placed_and_named(engines, runner, name, module, place):
    engine, case = engines["torch"], CASES[name]
    model = engine._model(case)
    layer = next(layer for path, layer in model.named_modules() if path.endswith(module))
    right = layer.eps
    layer.eps = right / 10
    try:
        (result,) = conform.run(runner, [engine], [case])
    finally:
        layer.eps = right
    assert (result.status, result.place) == ("fail", place), result.reason
    assert result.causes[0] == "eps ten times too small"


@pytest.fixture(scope="module")
def channels_last(model_files):
    return {found.name: found.engine for found in find("channels_last", model_files=model_files)}


@pytest.mark.parametrize("name", _marked(name for name in MODELS if CASES[name].op in PICTURES))
def test_channels_last_is_honest(channels_last, runner, name):
    """torch's GroupNorm takes the variance as E[x^2] - E[x]^2 there, and the engine says so."""
    results = conform.run(runner, _asked(channels_last, not name.endswith("/quiet")), [CASES[name]])
    assert [(r.engine, r.reason) for r in results if not r.conforms] == []


def test_channels_last_undeclared_is_seen(channels_last, runner, monkeypatch):
    engine = channels_last["torch-channels-last"]
    monkeypatch.setattr(engine, "_numerics", TORCH_F32)
    (result,) = conform.run(runner, [engine], [CASES["sd15/unet/quiet"]])
    assert result.status == "fail"


@pytest.mark.parametrize("name", ["torch-channels-last", "torch-channels-last-f16"])
def test_another_eps_is_seen_in_channels_last(channels_last, runner, monkeypatch, name):
    true = torch.nn.functional.group_norm
    monkeypatch.setattr(
        torch.nn.functional, "group_norm", lambda x, groups, w, b, eps: true(x, groups, w, b, eps / 2)
    )
    (result,) = conform.run(runner, [channels_last[name]], [CASES["sd21/unet/quiet"]])
    assert (result.status, result.place) == ("fail", "input_blocks.1.0.in_layers.0"), result.reason


def test_torchs_own_words_reach_the_report(engines, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nmore lines")

    monkeypatch.setattr(torch.nn.functional, "silu", out_of_memory)
    case = next(CASES[name] for name in OPS if CASES[name].op == "silu")
    with pytest.raises(EngineFailure, match=r"^torch: DefaultCPUAllocator: can't allocate memory$"):
        engines["torch"].run(case, case.realize())


def test_no_such_device():
    (found,) = find("tpu")
    assert found.engine is None and "torch:channels_last" in found.why_not
    (found,) = find(device="tpu")
    assert found.engine is None and found.why_not.startswith("this torch sees no device tpu, only cpu (")


def test_an_answer_of_another_device():
    check_device(torch.zeros(1), "cpu")
    with pytest.raises(EngineFailure, match="torch was asked on cuda:0, and the answer is on cpu"):
        check_device(torch.zeros(1), "cuda:0")
