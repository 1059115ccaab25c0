"""refsd.watch of models whose weights torchao, bitsandbytes and diffusers' GGUF keep in few bits."""

from collections.abc import Callable
from pathlib import Path

import bitsandbytes
import gguf
import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel
from diffusers.quantizers.gguf import utils as of_gguf
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    MappingType,
    PerRow,
    quantize_,
)
from torchao.quantization.quantize_.workflows.int8 import int8_tensor

import refsd
from refsd.engines.torch.state import StateDict
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import LLM_ROWS, TORCHAO_ROWS
from refsd.numerics.quantization import kept_columns, quantize, rounded

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]
FIRST = "img_in"


def flux(dtype=torch.bfloat16, width: int = 64) -> FluxTransformer2DModel:
    """Two blocks. width: of the picture's tokens, of the words' and of the pooled text"""
    torch.manual_seed(1)
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=width,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=64,
        num_attention_heads=2,
        joint_attention_dim=width,
        pooled_projection_dim=width,
        axes_dims_rope=(16, 24, 24),
    ).to(dtype)


def called(model, dtype=torch.bfloat16, width: int = 64) -> None:
    place = torch.arange(35)
    given = {
        "hidden_states": torch.randn(2, 35, width),
        "encoder_hidden_states": torch.randn(2, 9, width),
        "pooled_projections": torch.randn(2, width),
        "timestep": torch.tensor([0.3, 0.8]),
        "img_ids": torch.stack([place * 0, place // 7, place % 7], 1),
        "txt_ids": torch.zeros(9, 3),
    }
    with torch.inference_mode():
        model(**{name: tensor.to(dtype) for name, tensor in given.items()})


def each_linear(model, made: Callable[[torch.nn.Linear], torch.nn.Module]):
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if type(layer) is torch.nn.Linear:
                new = made(layer)
                new.bias = layer.bias
                setattr(module, name, new)
    return model


def by_gguf(kind: str):
    number = gguf.GGMLQuantizationType[kind]

    def made(layer):
        new = of_gguf.GGUFLinear(layer.in_features, layer.out_features, True, layer.weight.dtype)
        codes = torch.from_numpy(gguf.quantize(layer.weight.detach().float().numpy(), number))
        new.weight = of_gguf.GGUFParameter(codes, quant_type=number)
        return new

    return lambda model: each_linear(model, made)


def by_bitsandbytes(kind: str, nested: bool):
    def made(layer):
        dtype, data = layer.weight.dtype, layer.weight.data
        new = bitsandbytes.nn.Linear4bit(
            layer.in_features, layer.out_features, compute_dtype=dtype, quant_type=kind
        )
        new.weight = bitsandbytes.nn.Params4bit(
            data, requires_grad=False, quant_type=kind, compress_statistics=nested
        )
        return new.to("cpu")

    return lambda model: each_linear(model, made)


def by_llm_int8(threshold=6.0, **more):
    def made(layer):
        new = bitsandbytes.nn.Linear8bitLt(
            layer.in_features, layer.out_features, has_fp16_weights=False, threshold=threshold
        )
        new.weight = bitsandbytes.nn.Int8Params(layer.weight.data, requires_grad=False, **more)
        return new.to("cpu")

    return lambda model: each_linear(model, made)


def by_torchao(config):
    def changed(model):
        quantize_(model, config)
        return model

    return changed


TOOLS = {
    "torchao-int8": (torch.bfloat16, by_torchao(Int8DynamicActivationInt8WeightConfig())),
    "llm-int8": (torch.bfloat16, lambda model: by_llm_int8()(model).eval()),
    "llm-int8-outliers": (torch.bfloat16, lambda model: by_llm_int8(2.8)(model).eval()),
    "llm-int8-training": (torch.bfloat16, lambda model: by_llm_int8()(model).train()),
    "torchao-weights": (torch.bfloat16, by_torchao(Int8WeightOnlyConfig())),
    "torchao-weights-f32": (torch.float32, by_torchao(Int8WeightOnlyConfig())),
    "gguf-q8_0": (torch.float16, by_gguf("Q8_0")),
    "gguf-q4_0": (torch.bfloat16, by_gguf("Q4_0")),
    "gguf-q5_1": (torch.bfloat16, by_gguf("Q5_1")),
    "nf4": (torch.bfloat16, by_bitsandbytes("nf4", True)),
    "nf4-f32": (torch.float32, by_bitsandbytes("nf4", False)),
    "fp4": (torch.float16, by_bitsandbytes("fp4", True)),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_an_honest_tool_is_right(tool):
    dtype, change = TOOLS[tool]
    model = change(flux(dtype))
    with refsd.watch(model, show=None) as report:
        called(model, dtype)
    assert report.passed and report.calls[0].taps > 20, str(report)


@pytest.mark.parametrize("tool", ["torchao-int8", "torchao-weights", "gguf-q4_0", "gguf-q5_1"])
def test_every_call_of_a_tool_is_judged(tool):
    dtype, change = TOOLS[tool]
    model = change(flux(dtype))
    with refsd.watch(model, by="operations", show=None) as report:
        called(model, dtype)
    assert report.passed and report.judged == report.total, str(report)


def test_dequantised_with_the_wrong_middle(monkeypatch):
    number = gguf.GGMLQuantizationType.Q4_0
    right = of_gguf.dequantize_functions[number]

    def wrong(blocks, *more):
        return right(blocks, *more) + blocks[:, :2].view(torch.float16).to(torch.float32)

    monkeypatch.setitem(of_gguf.dequantize_functions, number, wrong)
    model = by_gguf("Q4_0")(flux())
    with refsd.watch(model, show=None) as report:
        called(model)
    assert report.first is not None and report.first.place == FIRST, str(report)


def test_scales_of_the_row_before(monkeypatch):
    right = int8_tensor.int_scaled_matmul
    monkeypatch.setattr(int8_tensor, "int_scaled_matmul", lambda x, w, scale: right(x, w, scale.roll(1, 0)))
    model = TOOLS["torchao-int8"][1](flux())
    with refsd.watch(model, show=None) as report:
        called(model)
    assert report.first is not None and report.first.place == FIRST, str(report)


def _codes(change):
    """LLM.int8() with codes, scales or columns of outliers that `change` gives back."""
    right = bitsandbytes.functional.int8_vectorwise_quant
    return lambda x, threshold=0.0: change(right, x, threshold)


_LLM_BUGS = {
    "outliers are left out": lambda right, x, threshold: (*right(x, threshold)[:2], None),
    "columns of outliers are multiplied twice": lambda right, x, threshold: (
        *right(torch.where(x.abs() < threshold, x, 0), 0.0)[:2],
        right(x, threshold)[2],
    ),
    "the next row's scale": lambda right, x, threshold: (
        right(x, threshold)[0],
        right(x, threshold)[1].roll(-1),
        right(x, threshold)[2],
    ),
}


@pytest.mark.parametrize("bug", _LLM_BUGS)
def test_outliers_treated_otherwise(bug, monkeypatch):
    """Every third column has a number of 2.8 or more."""
    model = by_llm_int8(2.8)(flux()).eval()
    monkeypatch.setattr(bitsandbytes.functional, "int8_vectorwise_quant", _codes(_LLM_BUGS[bug]))
    with refsd.watch(model, show=None) as report:
        called(model)
    assert report.first is not None and report.first.place == FIRST, str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_codes_are_those_of_llm_int8(dtype):
    """They multiply by 127 / the largest, here x is divided by the largest / 127: ties alone may fall apart."""
    torch.manual_seed(2)
    x = (torch.randn(64, 320) * torch.logspace(-2, 0.4, 64)[:, None]).to(dtype)
    x[6] = 0.25
    codes, largest, columns = bitsandbytes.functional.int8_vectorwise_quant(x.half(), threshold=6.0)
    wide = x.float().numpy()
    kept = kept_columns(wide, LLM_ROWS)
    assert np.array_equal(np.flatnonzero(kept), columns.numpy()) and 5 < kept.sum() < 300
    read, steps = rounded(wide, LLM_ROWS, lambda y: y), 127 / largest.numpy().astype(np.float64)[:, None]
    assert (read[:, kept] == wide[:, kept]).all()
    apart = np.rint(read * steps)[:, ~kept] != codes.numpy()[:, ~kept]
    quotients = (wide * steps)[:, ~kept][apart]
    assert apart.mean() < 0.01 and (abs(quotients - np.floor(quotients) - 0.5) < 1e-5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_codes_are_torchaos(dtype):
    torch.manual_seed(2)
    x = (torch.randn(64, 320) * torch.logspace(-4, 2, 64)[:, None]).to(dtype)
    x[3], x[4, 0], x[5] = 0, -1000, x[5].abs().neg()
    own = int8_tensor.Int8Tensor.from_hp(x, PerRow())
    wide = x.float().numpy()
    read = quantize(wide, TORCHAO_ROWS, lambda y: torch.from_numpy(np.asarray(y)).to(dtype).float().numpy())
    assert np.array_equal(read.values, own.qdata.numpy())
    assert np.array_equal(read.scale, np.where(read.scale == 0, 0, own.scale.numpy()))


def test_bitsandbytes_on_a_cpu_with_avx512_lets_no_block_cross_rows():
    """docs/findings/bitsandbytes-cpu-rows.md; on other CPUs it is right."""
    model = by_bitsandbytes("nf4", False)(flux(torch.float32, 32))
    with refsd.watch(model, show=None, causes=False) as report:
        called(model, torch.float32, 32)
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        assert report.first is not None and report.first.place == FIRST, str(report)
    else:
        assert report.passed, str(report)


def test_weights_are_what_the_tool_computes_with():
    model = by_bitsandbytes("fp4", True)(flux(torch.float32))
    layer, name = model.transformer_blocks[0].attn.to_q, "transformer_blocks.0.attn.to_q.weight"
    own = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    read = StateDict("flux", model.state_dict())[name]
    assert read.type == "fp4" and torch.equal(torch.from_numpy(read.values()), own.float())


def test_what_no_numerics_describe_is_refused_by_name():
    linear8 = bitsandbytes.nn.Linear8bitLt
    eight = each_linear(flux(), lambda layer: linear8(layer.in_features, layer.out_features))
    lopsided = by_torchao(Int8DynamicActivationInt8WeightConfig(act_mapping_type=MappingType.ASYMMETRIC))(flux())
    half = TOOLS["torchao-int8"][1](flux(torch.float16))
    for model, reason in (
        (eight, "linear_1 rounds its weight to int8 as it multiplies"),
        (lopsided, "torchao's Int8Tensor rounds its input"),
        (half, "in torch.float16: one that falls"),
    ):
        with pytest.raises(BadInput, match=reason), refsd.watch(model, show=None):
            pass
