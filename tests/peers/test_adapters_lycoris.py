"""LyCORIS running, in float64: its modules' forward, and the state they would save, read back."""

import copy

import numpy as np
import pytest
import torch
from float64_peers import distance, float64_throughout
from lycoris.modules import (
    ButterflyOFTModule,
    DiagOFTModule,
    FullModule,
    GLoRAModule,
    IA3Module,
    LoConModule,
    LohaModule,
    LokrModule,
    NormModule,
)

from refsd.kernels.adapters import Conv2d, Linear
from refsd.kernels.adapters.scales import lokr_scale_lycoris_diff
from refsd.kernels.group_norm import group_norm
from refsd.kernels.layer_norm import layer_norm
from refsd.numerics.tensor import stored
from refsd.weights.adapter_kinds import Parts, build
from refsd.weights.adapter_names import split

pytestmark = pytest.mark.peer

OUT, IN = 24, 16
TUCKER = {"use_tucker": True}
RANK = {"lora_dim": 4, "alpha": 3.0}
DORA = {"weight_decompose": True}
BOTH = {"decompose_both": True, "factor": 4, "lora_dim": 1, "alpha": 0.5}
BOTH_4 = {"decompose_both": True, "factor": 4, "lora_dim": 2, "alpha": 0.5}

# what -> module, its arguments; "conv" alone where a linear layer has no such form.
MODULES = {
    "locon": (LoConModule, RANK),
    "locon-rs": (LoConModule, {**RANK, "rs_lora": True}),
    "locon-bypass": (LoConModule, {**RANK, "bypass_mode": True}),
    "locon-dora": (LoConModule, {**RANK, **DORA}),
    "locon-dora-input": (LoConModule, {**RANK, **DORA, "wd_on_out": False}),
    "loha": (LohaModule, RANK),
    "loha-rs": (LohaModule, {**RANK, "rs_lora": True}),
    "loha-dora": (LohaModule, {**RANK, **DORA}),
    "lokr-full": (LokrModule, {**RANK, "full_matrix": True}),
    "lokr-w2": (LokrModule, {"lora_dim": 2, "alpha": 3.0, "factor": 4}),
    "lokr-both": (LokrModule, BOTH_4),
    "lokr-rank-one": (LokrModule, BOTH),
    "lokr-rs": (LokrModule, {**BOTH_4, "rs_lora": True}),
    "lokr-bypass": (LokrModule, {**BOTH_4, "bypass_mode": True}),
    "lokr-unbalanced": (LokrModule, {**BOTH_4, "unbalanced_factorization": True, "factor": -1}),
    "lokr-dora": (LokrModule, {**BOTH_4, **DORA}),
    "lokr-dora-input": (LokrModule, {**BOTH_4, **DORA, "wd_on_out": False}),
    "glora": (GLoRAModule, RANK),
    "glora-bypass": (GLoRAModule, {**RANK, "bypass_mode": True}),
    "oft": (DiagOFTModule, {"lora_dim": 4}),
    "oft-constraint": (DiagOFTModule, {"lora_dim": 4, "constraint": 0.05}),
    "oft-rescaled": (DiagOFTModule, {"lora_dim": 4, "rescaled": True}),
    "boft": (ButterflyOFTModule, {"lora_dim": 6}),
    "boft-constraint": (ButterflyOFTModule, {"lora_dim": 6, "constraint": 0.05}),
    "boft-rescaled": (ButterflyOFTModule, {"lora_dim": 6, "rescaled": True}),
    "ia3": (IA3Module, {}),
    "ia3-input": (IA3Module, {"train_on_input": True}),
    "full": (FullModule, {}),
}
TUCKERS = {
    "locon-mid": (LoConModule, {**RANK, **TUCKER}),
    "locon-mid-bypass": (LoConModule, {**RANK, **TUCKER, "bypass_mode": True}),
    "loha-mid": (LohaModule, {**RANK, **TUCKER}),
    "lokr-mid": (LokrModule, {**BOTH_4, **TUCKER}),
    "lokr-mid-bypass": (LokrModule, {**BOTH_4, **TUCKER, "bypass_mode": True}),
    "lokr-mid-dora": (LokrModule, {**BOTH_4, **TUCKER, **DORA}),
}
LAYERS = {
    "linear": lambda bias: torch.nn.Linear(IN, OUT, bias=bias),
    "conv": lambda bias: torch.nn.Conv2d(IN, OUT, 3, 2, 1, bias=bias),
    "dilated": lambda bias: torch.nn.Conv2d(IN, OUT, 3, 1, 2, 2, bias=bias),
    "pointwise": lambda bias: torch.nn.Conv2d(IN, OUT, 1, bias=bias),
}
CASES = [(layer, what) for layer in LAYERS for what in MODULES] + [
    (k, what) for k in ("conv", "dilated") for what in TUCKERS
]
# Its bypass convolutions are built without the layer's dilation.
_NARROW = {("dilated", what) for what in ("locon-bypass", "locon-mid-bypass", "glora-bypass")}
CASES = [case for case in CASES if case not in _NARROW]


def redraw(module):
    """Every parameter its own draw, none zero; factors near 1 where they multiply a layer."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in module.named_parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        offset = 1.5 if name in ("rescale", "dora_scale") else 0.0
        parameter.data = 0.4 * draw + offset


def ours(module, layer, prefix="lora_unet_x", state=None):
    """The state that it would save, by its names in a file, as refsd reads it. state: another one"""
    parts = {}
    for name, tensor in (state or module.state_dict()).items():
        found, part = split(f"{prefix}.{name}")
        assert found == prefix
        parts[part] = stored(tensor.detach().numpy())
    return build(Parts(parts, tuple(layer.weight.shape), lambda t: np.array(t.values(), np.float64)))


def made(module_class, layer, **arguments):
    """A module on the layer, drawn anew. The layer stays as it is."""
    on = copy.deepcopy(layer)
    module = module_class("x", on, **arguments)
    if module_class is FullModule:
        module.apply_to()  # what it saves is its weight less the layer's, which this puts in
    redraw(module)
    return module


def under(layer):
    weight = layer.weight.detach().numpy()
    bias = None if layer.bias is None else layer.bias.detach().numpy()
    if weight.ndim == 2:
        return Linear(weight, bias)
    return Conv2d(weight, bias, layer.stride[0], (layer.padding[0],) * 4, layer.dilation[0])


def adapted(adapter, layer, x, strength=1.0):
    """The base layer's output, and what the adapter adds."""
    it = under(layer)
    out = it.apply(x, it.weight)
    if it.bias is not None:
        out += it.channels(it.bias)
    base = out.copy()
    adapter.forward(x, base, it, out, strength)
    return out


def draw_input(kind):
    return np.random.default_rng(3).standard_normal((2, 5, IN) if kind == "linear" else (2, IN, 7, 6))


@pytest.mark.parametrize(("kind", "what"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_forward(kind, what, bias):
    module_class, arguments = (MODULES | TUCKERS)[what]
    x = draw_input(kind)
    with float64_throughout():
        layer = LAYERS[kind](bias)
        module = made(module_class, layer, **arguments)
        expected = module(torch.from_numpy(x))
        adapter = ours(module, layer)
    assert distance(adapted(adapter, layer, x), expected) < 1e-12


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("what", ["locon", "loha", "lokr-both", "lokr-w2", "lokr-full"])
def test_a_learned_scalar_is_a_factor_of_the_change(kind, what):
    """A module's own parameters keep it apart; what it saves has it multiplied into the first factor."""
    module_class, arguments = MODULES[what]
    x = draw_input(kind)
    with float64_throughout():
        layer = LAYERS[kind](True)
        module = made(module_class, layer, use_scalar=True, **arguments)
        expected = module(torch.from_numpy(x))
        own = {**module.state_dict(), **dict(module.named_parameters())}
        apart, saved = ours(module, layer, state=own), ours(module, layer)
    assert "scalar" in own
    assert distance(adapted(apart, layer, x), expected) < 1e-12
    assert distance(adapted(saved, layer, x), expected) < 1e-12


@pytest.mark.parametrize("multiplier", [0.7, -0.5])
@pytest.mark.parametrize(("kind", "what"), CASES)
def test_multiplier(kind, what, multiplier):
    module_class, arguments = (MODULES | TUCKERS)[what]
    x = draw_input(kind)
    with float64_throughout():
        layer = LAYERS[kind](True)
        module = made(module_class, layer, multiplier=multiplier, **arguments)
        expected = module(torch.from_numpy(x))
        adapter = ours(module, layer)
        once = module_class is FullModule or "bypass" in what
        # What a LoHa or LoKr merges is scaled twice: test_get_diff_weight_scales_twice.
        once |= what.startswith(("loha", "lokr"))
        merged = None if once else module.get_merged_weight(multiplier, layer.weight.shape)[0]
    assert distance(adapted(adapter, layer, x, multiplier), expected) < 1e-12
    if merged is not None:
        weight = layer.weight.detach().numpy()
        assert distance(weight + adapter.delta(weight, multiplier), merged) < 1e-12


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("what", ["lokr-w2", "lokr-both", "lokr-full", "loha"])
def test_get_diff_weight_scales_twice(kind, what):
    """LyCORIS's two truths: get_merged_weight is not what forward trains, unless the scale is 1."""
    module_class, arguments = MODULES[what]
    with float64_throughout():
        layer = LAYERS[kind](True)
        module = made(module_class, layer, **arguments)
        adapter = ours(module, layer)
        weight = layer.weight.detach().numpy()
        twice, _ = module.get_diff_weight(shape=layer.weight.shape)
        merged, _ = module.get_merged_weight(shape=layer.weight.shape)
    assert adapter.scale == pytest.approx(module.scale)
    squared = lokr_scale_lycoris_diff(module.scale, None if adapter.scale == 1 else 1)
    doubled = adapter._replace(scale=squared).delta(weight)
    assert distance(doubled, twice) < 1e-12
    assert distance(weight + doubled, merged) < 1e-12
    assert (distance(adapter.delta(weight), twice) > 0.1) == (what != "lokr-full")


@pytest.mark.parametrize("kind", LAYERS)
def test_locon_scales_once(kind):
    with float64_throughout():
        layer = LAYERS[kind](True)
        module = made(LoConModule, layer, **RANK)
        diff, _ = module.get_diff_weight(shape=layer.weight.shape)
        adapter = ours(module, layer)
    assert distance(adapter.delta(layer.weight.detach().numpy()), diff) < 1e-12


@pytest.mark.parametrize("what", ["oft", "boft", "ia3"])
def test_bypass_takes_the_bias_along(what):
    """Its bypass mode turns, or scales, the output with the bias in it; its weights do not."""
    module_class, arguments = MODULES[what]
    x = draw_input("linear")
    with float64_throughout():
        layer = LAYERS["linear"](True)
        module = made(module_class, layer, bypass_mode=True, **arguments)
        expected = module(torch.from_numpy(x))
        adapter = ours(module, layer)
    bias = layer.bias.detach().numpy()
    turned = adapter._replace(on_bias=True) if what == "ia3" else adapter
    more = bias * 0 if what == "ia3" else adapter.delta(bias[:, None])[:, 0]
    assert distance(adapted(turned, layer, x) + more, expected) < 1e-12
    assert distance(adapted(adapter, layer, x), expected) > 1e-3


@pytest.mark.parametrize("multiplier", [1.0, 0.6])
def test_norms(multiplier):
    x = np.random.default_rng(5).standard_normal((2, 12, 3, 4))
    with float64_throughout():
        group, layer = torch.nn.GroupNorm(4, 12), torch.nn.LayerNorm(12)
        for norm in (group, layer):
            redraw(norm)
            module = made(NormModule, norm, multiplier=multiplier)
            adapter = ours(module, norm)
            weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
            weight = weight + adapter.delta(weight, multiplier)
            bias = bias + adapter.bias_delta(bias, multiplier)
            if norm is group:
                expected, got = module(torch.from_numpy(x)), group_norm(x, weight, bias, 4, 1e-5)
            else:
                rows = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(-1, 12)
                expected, got = module(torch.from_numpy(rows)), layer_norm(rows, weight, bias, 1e-5)
            assert distance(got, expected) < 1e-12
