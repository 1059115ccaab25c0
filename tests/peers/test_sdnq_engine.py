"""SDNQ as an engine: right in every case and seed, its layers too; with a bug in it, seen and named."""

import os

os.environ |= {"SDNQ_USE_OPENVINO_MM": "0", "SDNQ_ALLOW_FP8_MM": "1", "SDNQ_USE_TORCH_COMPILE": "0"}

from dataclasses import replace
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
import torch
from sdnq import sdnq_post_load_quant
from sdnq.layers.linear import linear_fp8, linear_int8

from refsd.cases import select
from refsd.engines import registry, sdnq
from refsd.engines.reference import Reference
from refsd.golden import conform, operations
from refsd.judges import judges
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.processor import cpu_features
from refsd.numerics.profiles import SDNQ, SDNQ_FP8, SDNQ_ROWS, TORCH_F32
from refsd.numerics.quantization import quantize
from refsd.numerics.tensor import Scaling, StoredTensor

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

_CASES = select("linear_int8/*", "linear_fp8/*")


class InProcess:
    """The engine in this process, where its functions can be replaced."""

    version = "1"

    def __init__(self, engine):
        self.name, self.refuses = engine.name, engine.refuses
        self.numerics, self.deviations = engine.numerics, engine.deviations
        self._dtype = engine._dtype

    def run(self, case, inputs):
        params = dict(operations.complete(case.op, inputs, case.params))
        return {"y": sdnq.compute(torch, case.op, params, self._dtype, inputs)}


@pytest.fixture(scope="module")
def engines():
    found = [one.engine for one in registry.find("sdnq") if "openvino" not in one.name]
    return {engine.name: InProcess(engine) for engine in found}


@pytest.fixture(scope="module")
def runner(waivers):
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), waivers)


def test_its_process_conforms_in_every_case(runner):
    """With OpenVINO's products a CPU without VNNI is wrong, as the waiver says."""
    results = conform.run(runner, [one.engine for one in registry.find("sdnq")], _CASES)
    assert [(r.engine, r.case, r.reason) for r in results if not r.conforms] == []
    apart = [r for r in results if r.engine == "sdnq-openvino" and r.status not in ("pass", "refused")]
    wrong = "avx2" in cpu_features() and not cpu_features() & {"avx_vnni", "avx512_vnni"}
    assert bool(apart) == wrong and all("128 higher" in " ".join(r.causes) for r in apart)
    assert sum(r.status == "pass" for r in results) >= 3 * 17


@pytest.mark.parametrize("seed", range(1, 6))
def test_no_false_alarm(seed, engines, runner):
    cases = [
        msgspec.structs.replace(
            case, inputs={name: msgspec.structs.replace(recipe, seed=seed) for name, recipe in case.inputs.items()}
        )
        for case in _CASES
    ]
    results = conform.run(runner._replace(explains=False), [*engines.values()], cases)
    assert [(r.engine, r.case, r.reason) for r in results if not r.conforms] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [SDNQ_ROWS, SDNQ_FP8], ids=str)
def test_codes_and_scales_are_theirs(rule, dtype):
    torch.manual_seed(2)
    x = (torch.randn(64, 320) * torch.logspace(-2, 2, 64)[:, None]).to(dtype)
    x[4, 0], x[5] = -1000, x[5].abs().neg()
    made = linear_int8.quantize_int_mm_input if rule is SDNQ_ROWS else linear_fp8.quantize_fp_mm_input
    codes, scale = made(x, dtype=torch.float32)
    read = quantize(x.float().numpy(), rule, lambda y: torch.from_numpy(y).to(dtype).float().numpy())
    assert np.array_equal(read.values, codes.float().numpy()) and np.array_equal(read.scale, scale.numpy())


@pytest.mark.parametrize("rows", [(2, 19), (2, 16), (1, 31)])
@pytest.mark.parametrize("rotation", [0, 64])
def test_a_layer_that_it_quantised_multiplies_as_the_profile_says(rows, rotation):
    """With 32 rows and more, and with fewer, which meet the widened weight."""
    torch.manual_seed(3)
    config = {"weights_dtype": "int8", "use_quantized_matmul": True, "minimum_allowed_numel": 0}
    turned = {"use_hadamard": True, "hadamard_group_size": rotation} if rotation else {}
    layer = sdnq_post_load_quant(torch.nn.Sequential(torch.nn.Linear(192, 48)), **config, **turned)[0]
    assert layer.weight.dtype == torch.int8 and layer.sdnq_dequantizer.use_quantized_matmul
    x = torch.randn(*rows, 192)
    with torch.inference_mode():
        theirs = layer(x).numpy()
    codes = np.ascontiguousarray(layer.weight.t().numpy())
    weight = StoredTensor("i8", codes.shape, codes, Scaling(layer.scale.numpy().ravel(), rotation=rotation))
    bias = layer.bias.detach().numpy()
    ours, widened = (
        a.linear(x.numpy(), a.expand(weight), bias, weight.product_type)
        for a in (Arithmetic(replace(SDNQ, storage="float32")), Arithmetic(TORCH_F32))
    )
    assert abs(ours - theirs).max() < 1e-5 * abs(theirs).max()
    rounds = abs(widened - theirs).max() > 1e-3 * abs(theirs).max()
    assert rounds == (rows[0] * rows[1] >= 32)


# --- bugs on purpose: name in the module -> replacement, operation, words of the cause --------------------------

_int8, _fp8 = linear_int8.quantize_int_mm_input, linear_fp8.quantize_fp_mm_input
_product, _product8 = linear_int8.int_scaled_mm_func, linear_fp8.fp8_scaled_mm_func


def _codes(change):
    """Codes of x / scale by another rounding, under another scale."""

    def made(x, dtype=None, matmul_dtype="int8"):
        rows = x.flatten(0, -2).to(dtype)
        return change(rows, rows.abs().amax(dim=-1, keepdim=True) / 127)

    return {"quantize_int_mm_input": made}


def _rounded(rows, scale, rounding=torch.round):
    return rounding(torch.where(scale > 0, rows / scale, 0)).clamp(-128, 127).to(torch.int8), scale


def _scaled(change, made=_int8, name="quantize_int_mm_input"):
    def scaled(x, dtype=None, **more):
        codes, scale = made(x, dtype, **more)
        return codes, change(scale)

    return {name: scaled}


def _multiplied(**changed):
    """Other arguments of the product."""

    def product(a, b, scale_a, scale_b, bias=None, out_dtype=torch.float32):
        args = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
        return _product(
            **args | {name: change(args[name]) for name, change in changed.items()}, out_dtype=out_dtype
        )

    return {"int_scaled_mm_func": product}


def _scaled_bias(a, b, scale_a, scale_b, bias=None, out_dtype=torch.float32):
    y = torch._int_mm(a, b).float()
    return ((y if bias is None else y + bias) * scale_a * scale_b).to(out_dtype)


_away = lambda v: v.sign() * (v.abs() + 0.5).floor()
BUGS = {
    "truncated": (linear_int8, _codes(lambda x, s: _rounded(x, s, torch.trunc)), "toward zero"),
    "over 128": (linear_int8, _codes(lambda x, s: _rounded(x, s * 127 / 128)), "128"),
    "one scale": (linear_int8, _codes(lambda x, s: _rounded(x, s.amax().expand(s.shape))), "whole tensor"),
    "quotients in bfloat16": (linear_int8, _codes(lambda x, s: _rounded(x.bfloat16(), s.bfloat16())), None),
    "row before": (linear_int8, _scaled(lambda s: s.roll(1, 0)), "row before"),
    "float16 scale": (linear_int8, _scaled(lambda s: s.half().float()), "float16"),
    "inverse scale": (linear_int8, _scaled(lambda s: 1 / s), "divided"),
    "next scale of the weight": (linear_int8, _multiplied(scale_b=lambda s: s.roll(-1)), "next row"),
    "first scale of the weight": (
        linear_int8,
        _multiplied(scale_b=lambda s: s.flatten()[:1].expand(s.shape)),
        "first scale",
    ),
    "no scale of the weight": (linear_int8, _multiplied(scale_b=torch.ones_like), "weight's scale missing"),
    "no bias": (linear_int8, _multiplied(bias=lambda b: None), "bias missing"),
    "scaled bias": (linear_int8, {"int_scaled_mm_func": _scaled_bias}, "before the scales"),
    "no rotation": (linear_int8, {"rotate_hadamard": lambda x, hadamard: x}, "rotation of the activations missing"),
    "fp8: inverse scale": (linear_fp8, _scaled(lambda s: 1 / s, _fp8, "quantize_fp_mm_input"), "divided"),
    "fp8: row before": (linear_fp8, _scaled(lambda s: s.roll(1, 0), _fp8, "quantize_fp_mm_input"), "row before"),
    "fp8: bfloat16 scale": (
        linear_fp8,
        _scaled(lambda s: s.bfloat16().float(), _fp8, "quantize_fp_mm_input"),
        "bfloat16",
    ),
    "fp8: no bias": (
        linear_fp8,
        {"fp8_scaled_mm_func": lambda *args, bias, **more: _product8(*args, bias=None, **more)},
        "bias missing",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_seen_and_named(name, engines, runner):
    module, replaced, words = BUGS[name]
    op = "linear_fp8" if module is linear_fp8 else "linear_int8"
    with patch.multiple(module, **replaced):
        wrong = conform.run(runner, [engines["sdnq"]], [case for case in _CASES if case.op == op])
    failed = [r for r in wrong if r.status == "fail"]
    assert failed, f"{name} gets through"
    causes = [cause for r in failed for cause in r.causes]
    assert words is None or any(words in cause for cause in causes), [(r.case, r.looks) for r in failed]
