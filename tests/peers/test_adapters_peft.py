"""PEFT running, in float64: its layers' forward, and the state that it saves, read back."""

import copy
import json

import numpy as np
import peft
import peft.tuners.boft.layer as boft_layer
import pytest
import torch
from float64_peers import distance, float64_throughout
from test_adapters_lycoris import LAYERS, adapted, draw_input

from refsd.judges.stage import StageJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored
from refsd.stages import STAGES
from refsd.weights.adapter_kinds import Parts, build
from refsd.weights.adapter_names import split
from refsd.weights.adapter_settings import of_module

pytestmark = [
    pytest.mark.peer,
    # PEFT takes a bias for a shard, and puts fan_in_fan_out right.
    pytest.mark.filterwarnings("ignore:Adapter 'default'. 1 LoRA tensor.s. have invalid shape"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to True"),
    pytest.mark.filterwarnings("ignore:The following alpha_pattern keys did not match"),
    pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed but the targeted layer"),
]

RANK = {"r": 4, "init_weights": False}
LORA = {"r": 4, "lora_alpha": 3, "init_lora_weights": False}
BLOCKS = {"r": 0, "oft_block_size": 4, "init_weights": False}
KRONECKER = {"r": 2, "alpha": 3, "init_weights": False, "decompose_factor": 4}

CONFIGS = {
    "lora": (peft.LoraConfig, LORA),
    "rslora": (peft.LoraConfig, {**LORA, "use_rslora": True}),
    "dora": (peft.LoraConfig, {**LORA, "use_dora": True}),
    "loha": (peft.LoHaConfig, {**RANK, "alpha": 3}),
    "loha-mid": (peft.LoHaConfig, {**RANK, "alpha": 3, "use_effective_conv2d": True}),
    "lokr": (peft.LoKrConfig, KRONECKER),
    "lokr-full": (peft.LoKrConfig, {**KRONECKER, "r": 12}),
    "lokr-both": (peft.LoKrConfig, {**KRONECKER, "decompose_both": True, "r": 1, "decompose_factor": -1}),
    "lokr-mid": (peft.LoKrConfig, {**KRONECKER, "use_effective_conv2d": True}),
    "lora-bias": (peft.LoraConfig, {**LORA, "lora_bias": True}),
    "lora-alpha-pattern": (peft.LoraConfig, {**LORA, "alpha_pattern": {"nothing": 5, "lay.*": 7}}),
    "rslora-patterns": (
        peft.LoraConfig,
        {**LORA, "use_rslora": True, "rank_pattern": {"layer": 3}, "alpha_pattern": {"^layer": 7}},
    ),
    "lora-fan-in": (peft.LoraConfig, {**LORA, "fan_in_fan_out": True}),
    "loha-patterns": (
        peft.LoHaConfig,
        {**RANK, "alpha": 3, "rank_pattern": {"layer": 3}, "alpha_pattern": {"layer": 5}},
    ),
    "lokr-patterns": (
        peft.LoKrConfig,
        {**KRONECKER, "rank_pattern": {"l[a-z]yer": 3}, "alpha_pattern": {"other|layer": 5, "layer": 9}},
    ),
    "lokr-full-patterns": (
        peft.LoKrConfig,
        {**KRONECKER, "rank_pattern": {"layer": 13}, "alpha_pattern": {"layer": 5}},
    ),
    "oft": (peft.OFTConfig, {**BLOCKS, "use_cayley_neumann": False}),
    "oft-series": (peft.OFTConfig, BLOCKS),
    "oft-few-terms": (peft.OFTConfig, {**BLOCKS, "num_cayley_neumann_terms": 2}),
    "oft-shared": (peft.OFTConfig, {**BLOCKS, "block_share": True}),
    "oft-rank": (peft.OFTConfig, {"r": 2, "oft_block_size": 0, "init_weights": False}),
    "oft-coft": (peft.OFTConfig, {**BLOCKS, "coft": True, "eps": 0.7}),
    "oft-coft-shared": (peft.OFTConfig, {**BLOCKS, "coft": True, "eps": 0.2, "block_share": True}),
    "boft": (peft.BOFTConfig, {"boft_block_size": 4, "init_weights": False}),
    "ia3": (peft.IA3Config, {"init_ia3_weights": False, "feedforward_modules": []}),
    "ia3-input": (peft.IA3Config, {"init_ia3_weights": False, "feedforward_modules": ["layer"]}),
    "ia3-input-pattern": (peft.IA3Config, {"init_ia3_weights": False, "feedforward_modules": "l.*r"}),
}
# What PEFT leaves out: its LoRA convolutions have no dilation, OFT refuses it, BOFT's pass none on.
UNDILATED = ("lora", "rslora", "dora", "oft", "boft")
CASES = [
    (kind, what)
    for kind in LAYERS
    for what in CONFIGS
    if not (kind == "dilated" and what.startswith(UNDILATED))
    and not (kind == "linear" and what.endswith("mid"))
    and not (kind != "linear" and what == "lora-fan-in")
]


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch):
    """BOFT would try to compile its CUDA extension, and warn."""
    monkeypatch.setattr(boft_layer, "get_fbd_cuda", lambda: False)


class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def wrapped(kind, what, bias=True, **more):
    """A layer, and PEFT's model around a copy of it, every parameter of the adapter its own draw."""
    config_class, arguments = CONFIGS[what]
    layer = LAYERS[kind](bias)
    config = config_class(target_modules=["layer"], **{**arguments, **more})
    model = peft.get_peft_model(Net(copy.deepcopy(layer)), config).eval()
    generator = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        if "base_layer" not in name:
            offset = 1.2 if any(part in name for part in ("magnitude", "boft_s", "ia3_l")) else 0.0
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator) + offset
    return layer, model, config


def ours(layer, model, config):
    parts = {}
    for name, tensor in peft.get_peft_model_state_dict(model).items():
        found, part = split(name)
        assert found == "base_model.model.layer"
        parts[part] = stored(tensor.detach().numpy())
    settings = of_module(json.loads(json.dumps(config.to_dict(), default=sorted)), "layer")
    return build(Parts(parts, tuple(layer.weight.shape), lambda t: np.array(t.values(), np.float64), settings))


@pytest.mark.parametrize(
    ("kind", "what", "bias"),
    # PEFT's BOFT convolution casts a bias that is not there.
    [(*case, bias) for case in CASES for bias in (True, False) if bias or case[1] != "boft" or case[0] == "linear"],
)
def test_forward(kind, what, bias):
    x = draw_input(kind)
    with float64_throughout():
        layer, model, config = wrapped(kind, what, bias)
        adapter = ours(layer, model, config)
        if what.startswith("oft") and kind == "conv":
            # Its forward adds overlapping patches up: its merged weight is what it says the adapter is.
            model.merge_and_unload()
            expected = model(torch.from_numpy(x))
        else:
            expected = model(torch.from_numpy(x))
    assert distance(adapted(adapter, layer, x), expected) < 1e-12


@pytest.mark.parametrize("scale", [0.7, -0.5])
@pytest.mark.parametrize("what", ["lora", "lora-bias", "rslora", "dora", "loha", "lokr", "lokr-full"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_scale(kind, what, scale):
    """What diffusers' set_adapters and scale= do. A DoRA's lengths are those of the weaker difference."""
    x = draw_input(kind)
    with float64_throughout():
        layer, model, config = wrapped(kind, what)
        adapter = ours(layer, model, config)
        model.base_model.model.layer.set_scale("default", scale)
        expected = model(torch.from_numpy(x))
        merged = model.merge_and_unload().layer
    assert distance(adapted(adapter, layer, x, scale), expected) < 1e-12
    weight = layer.weight.detach().numpy()
    assert distance(weight + adapter.delta(weight, scale), merged.weight) < 1e-12


@pytest.mark.parametrize(
    "what", ["lora", "lora-bias", "rslora", "dora", "loha", "lokr", "lokr-full", "oft", "oft-coft", "boft", "ia3"]
)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_merged(kind, what):
    with float64_throughout():
        layer, model, config = wrapped(kind, what)
        adapter = ours(layer, model, config)
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        merged = model.merge_and_unload().layer
    assert distance(weight + adapter.delta(weight), merged.weight) < 1e-12
    more = adapter.bias_delta(bias) if what in ("ia3", "lora-bias") else 0.0
    assert distance(bias + more, merged.bias) < 1e-12


def test_ofts_convolution_is_not_its_merged_weight():
    """Patches are turned and added up again: the 3x3 forward is another function."""
    x = draw_input("conv")
    with float64_throughout():
        _, model, _ = wrapped("conv", "oft")
        forward = model(torch.from_numpy(x))
        merged = model.merge_and_unload()(torch.from_numpy(x))
    assert distance(forward.detach().numpy(), merged) > 0.5


class BlockDiagonal:
    """What its CUDA extension computes, by torch alone."""

    @staticmethod
    def apply(blocks):
        return torch.stack([torch.block_diag(*stage) for stage in blocks])


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("kind", ["linear", "pointwise", "conv"])
def test_butterfly(kind, stages, monkeypatch):
    """Without its CUDA extension PEFT trains one stage; the permutations are its own all the same."""
    monkeypatch.setattr(boft_layer, "get_fbd_cuda", lambda: True)
    monkeypatch.setattr(boft_layer, "FastBlockDiag", BlockDiagonal)
    x = draw_input(kind)
    with float64_throughout():
        layer, model, config = wrapped(kind, "boft", boft_n_butterfly_factor=stages, boft_block_size=2)
        adapter = ours(layer, model, config)
        expected = model(torch.from_numpy(x))
    assert len(adapter.stages) == stages
    assert distance(adapted(adapter, layer, x), expected) < 1e-12


def test_lokr_in_full_keeps_its_alpha():
    """alpha / r of the configuration, where LyCORIS's rule is 1."""
    with float64_throughout():
        layer, model, config = wrapped("linear", "lokr-full")
        adapter = ours(layer, model, config)
    assert adapter.scale == 3 / 12 and adapter.rank is None


@pytest.mark.parametrize("label", ["settings", "rslora", "bias"])
def test_the_stages_cases_with_settings(label):
    """The layer that PEFT merges: its weight, and its bias."""
    (case,) = (one for one in STAGES["stage/adapter"].cases if one.name.endswith(f"lora-peft-{label}"))
    inputs = case.realize()
    values = {name: torch.from_numpy(tensor.values().astype(np.float64)) for name, tensor in inputs.items()}
    found = StageJudge().answer(case, inputs, Arithmetic(FLOAT64))
    rows, columns = values["weight"].shape
    layer = torch.nn.Linear(columns, rows, dtype=torch.float64, bias="bias" in values)
    layer.weight.data = values["weight"]
    if layer.bias is not None:
        layer.bias.data = values["bias"]
    model = torch.nn.Sequential()
    model.add_module("layer", layer)
    config = peft.LoraConfig(r=4, target_modules=["layer"], lora_bias=label == "bias", **case.params["settings"])
    model = peft.get_peft_model(model, config)
    own = model.base_model.model.layer
    for which, factor in (("lora_A", own.lora_A), ("lora_B", own.lora_B)):
        factor["default"].to(torch.float64).weight.data = values[f"base_model.model.layer.{which}.weight"]
    if label == "bias":
        own.lora_B["default"].bias.data = values["base_model.model.layer.lora_B.bias"]
    own.set_scale("default", case.params.get("strength", 1.0))
    merged = model.merge_and_unload().layer
    np.testing.assert_allclose(found["merged"], merged.weight.data.numpy(), rtol=1e-12, atol=1e-14)
    if label == "bias":
        np.testing.assert_allclose(found["merged_bias"], merged.bias.data.numpy(), rtol=1e-12, atol=1e-14)
