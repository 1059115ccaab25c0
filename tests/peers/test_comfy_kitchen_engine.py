"""comfy-kitchen as an engine: right in every case and seed; with a bug in it, seen and named."""

import itertools
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
import torch
from comfy_kitchen.backends.eager import awq as eager_awq
from comfy_kitchen.backends.eager import convrot_w4a4 as eager_w4a4
from comfy_kitchen.backends.eager import quantization as eager
from comfy_kitchen.backends.eager import svdquant as eager_svdquant
from comfy_kitchen.backends.eager import w4a8_int8 as eager_w4a8
from comfy_kitchen.float_utils import from_blocked, to_blocked
from comfy_kitchen.tensor import TensorCoreFP8Layout

from refsd.cases import select
from refsd.engines import comfy_kitchen, registry
from refsd.engines.reference import Reference
from refsd.golden import conform, operations
from refsd.golden.operations import OPERATIONS, linear_w4a8
from refsd.judges import judges
from refsd.kernels.quant import w4a8
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

_CASES = select(
    *("linear_int8/*", "linear_w4a8/*", "linear_w4a4/*", "linear_w4a16/*", "linear_svdquant/*"),
    *("linear_fp8/*", "linear_nvfp4/*", "linear_mxfp8/*"),
)


class InProcess:
    """The engine in this process, where its functions can be replaced."""

    version = "1"

    def __init__(self, engine):
        self.name, self.refuses, self.numerics, self.deviations = (
            *(engine.name, engine.refuses),
            *(engine.numerics, engine.deviations),
        )
        self._dtype = engine._dtype

    def run(self, case, inputs):
        params = dict(operations.complete(case.op, inputs, case.params))
        return {"y": comfy_kitchen.compute(torch, case.op, params, self._dtype, inputs)}


@pytest.fixture(scope="module")
def engines():
    return {one.name: InProcess(one.engine) for one in registry.find("comfy-kitchen")}


@pytest.fixture(scope="module")
def runner(waivers):
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), waivers)


def test_its_process_conforms_in_every_case(runner):
    found = [one.engine for one in registry.find("comfy-kitchen")]
    results = conform.run(runner, found, _CASES)
    assert [(r.engine, r.case, r.reason) for r in results if not r.conforms] == []
    assert sum(r.status == "pass" for r in results) >= 3 * (42 + 9) + 16 + 8


@pytest.mark.parametrize("seed", range(1, 11))
def test_no_false_alarm(seed, engines, runner):
    """Other weights and other activations, in each dtype."""
    cases = [
        msgspec.structs.replace(
            case, inputs={name: msgspec.structs.replace(recipe, seed=seed) for name, recipe in case.inputs.items()}
        )
        for case in _CASES
    ]
    results = conform.run(runner._replace(explains=False), [*engines.values()], cases)
    assert [(r.engine, r.case, r.reason) for r in results if not r.conforms] == []


_INT8 = [
    case
    for case in _CASES
    if case.op in ("linear_int8", "linear_w4a8") and not (case.params.get("zero_point") or "y_scale" in case.inputs)
]


@pytest.mark.parametrize("case", _INT8, ids=lambda case: case.name)
def test_int8_is_the_same_bit_for_bit(case, engines):
    """The rotation is a float32 product, in an order that BLAS chooses by the CPU: both begin with torch's rows."""
    inputs, params = case.realize(), operations.complete(case.op, case.realize(), case.params)
    x = torch.from_numpy(inputs["x"].values().astype(np.float32))
    rows = comfy_kitchen._rotated(x.reshape(-1, x.shape[-1]), params["rotation"]).reshape(x.shape)
    rotated = {**inputs, "x": stored(rows.numpy())}
    if case.op == "linear_w4a8":
        rotated["weight"] = stored(linear_w4a8._weight(inputs))
    known = [name.rstrip("?") for name in OPERATIONS["linear_int8"].inputs]
    rotated = {name: rotated[name] for name in known if rotated.get(name)}
    plain = {"scales": params.get("scales", "row"), "rotation": 0}
    ours = operations.run("linear_int8", Arithmetic(FLOAT32), rotated, plain)["y"]
    assert ours.tobytes() == engines["comfy-kitchen"].run(case, inputs)["y"].tobytes()


# --- bugs on purpose: names in eager -> replacements, operation, words of the cause ----------------------------

_rowwise, _tensorwise, _matmul = (
    eager.quantize_int8_rowwise,
    eager.quantize_int8_tensorwise,
    eager._int8_matmul_accumulate,
)
_fp8, _scaled = eager.quantize_per_tensor_fp8, TensorCoreFP8Layout.quantize


def _rounding(change):
    return {"_round_int8": lambda v, stochastic_rounding=0: change(v).to(torch.int8)}


def _rows(change):
    """Row-wise quantisation with another scale, or other codes."""
    return {"quantize_int8_rowwise": lambda x, stochastic_rounding=0: change(x)}


def _codes(x, scale, largest=127):
    return torch.where(scale > 0, x / scale, 0).round().clamp(-128, largest).to(torch.int8), scale


def _scale(x, largest=127.0):
    return x.abs().amax(dim=-1, keepdim=True).float() / largest


def _shift(change):
    def shifted(x, stochastic_rounding=0):
        codes, scale = _rowwise(x)
        return codes, change(scale)

    return {"quantize_int8_rowwise": shifted}


def _sums(change):
    return {"_int8_matmul_accumulate": lambda a, b: change(a, b)}


def _sylvester(size, device="cpu", dtype=torch.float32):
    h = torch.ones(1, 1)
    while len(h) < size:
        h = torch.kron(h, torch.tensor([[1.0, 1], [1, -1]]))
    return (h / size**0.5).to(dtype)


INT8 = {
    "truncated": (
        {"_round_int8": lambda v, stochastic_rounding=0: v.trunc().clamp(-128, 127).to(torch.int8)},
        "toward zero",
    ),
    "half away": (
        {
            "_round_int8": lambda v, stochastic_rounding=0: (
                (v.sign() * (v.abs() + 0.5).floor()).clamp(-128, 127).to(torch.int8)
            )
        },
        "away from zero",
    ),
    "wraps": (_rounding(lambda v: v.round().to(torch.int64)), "wrap"),
    "no -128": (
        {"_round_int8": lambda v, stochastic_rounding=0: v.round().clamp(-127, 127).to(torch.int8)},
        "-127, not -128",
    ),
    "one scale": (_rows(lambda x: _codes(x, _scale(x).amax().expand(len(x), 1))), "whole tensor"),
    "over 128": (_rows(lambda x: _codes(x, _scale(x, 128.0))), "128"),
    "signed": (_rows(lambda x: _codes(x, x.amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127)), "max x"),
    "zero rows": (_rows(lambda x: (_rowwise(x)[0], torch.where(_scale(x) > 0, _scale(x), torch.nan))), "NaN"),
    "previous row": (_shift(lambda scale: scale.roll(1, 0)), "row before"),
    "float16 scale": (_shift(lambda scale: scale.half().float()), "float16"),
    "bfloat16 scale": (_shift(lambda scale: scale.bfloat16().float()), "bfloat16"),
    "inverse scale": (_shift(lambda scale: 1 / scale), "divided"),
    "float16 sums": (_sums(lambda a, b: _matmul(a, b).half()), "float16"),
    "tail": (_sums(lambda a, b: _matmul(a[:, : len(b) // 64 * 64], b[: len(b) // 64 * 64])), "last columns"),
    "not transposed": (_sums(lambda a, b: _matmul(a, b.T.contiguous().reshape(b.shape))), "transpose"),
    "unsigned": (_sums(lambda a, b: _matmul(a, b) + 256 * (a.int() @ (b < 0).int())), "unsigned"),
    "sylvester": ({"_build_hadamard": _sylvester}, "Sylvester"),
    "not rotated": ({"_rotate_activation": lambda x, h, g: x}, "rotation of the activations missing"),
    "16-bit sums": (_sums(lambda a, b: _matmul(a, b).clamp(-32768, 32767)), "16 bits"),
    "codes of 7 bits": (_rows(lambda x: _codes(x, _scale(x, 63.0))), None),  # seen, but on no page
}

_unpacked, _decoded, _int8 = (
    eager_w4a8._unpack_codes,
    eager_w4a8._dequant_int4_grouped_to_int8,
    eager_w4a8.int8_linear,
)


def _decoding(change):
    """The weight's int8 from other codes, scales or another table."""
    return {"_dequant_int4_grouped_to_int8": lambda q, scale, table, group: change(q, scale, table, group)}


def _as_int8(finish):
    """Another rounding of the levels to int8."""

    def decode(qdata, scale, table, group):
        codes = _unpacked(qdata, 2 * qdata.shape[1], 4)
        values = (codes - 8.0 if table is None else table[codes]) * scale.float().repeat_interleave(group, 1)
        return finish(values).to(torch.int8)

    return _decoding(decode)


def _without_rotation(*args, convrot, **kwargs):
    return _int8(*args, convrot=False, **kwargs)


W4A8 = {
    "nibbles": (
        {
            "_unpack_codes": lambda q, k, bits: (
                _unpacked(q, k, bits).reshape(len(q), -1, 2).flip(-1).reshape(len(q), k)
            )
        },
        "other order",
    ),
    "signed codes": ({"_unpack_codes": lambda q, k, bits: _unpacked(q, k, bits) ^ 8}, "two's complement"),
    "no table": (
        _decoding(lambda q, s, t, g: _decoded(q, (s.float() / 8 if t is not None else s), None, g)),
        "table",
    ),
    "usual table": (
        _decoding(lambda q, s, t, g: _decoded(q, s, torch.from_numpy(w4a8.USUAL_TABLE), g)),
        "usual table",
    ),
    "next entry": (_decoding(lambda q, s, t, g: _decoded(q, s, t if t is None else t.roll(-1), g)), "one entry on"),
    "next group": (_decoding(lambda q, s, t, g: _decoded(q, s.float().roll(-1, 1), t, g)), "next group"),
    "first group": (
        _decoding(lambda q, s, t, g: _decoded(q, s.float()[:, :1].expand(s.shape), t, g)),
        "first group",
    ),
    "no group scale": (_decoding(lambda q, s, t, g: _decoded(q, torch.ones(s.shape), t, g)), "groups missing"),
    "decoded by cutting": (_as_int8(lambda v: v.trunc().clamp(-127, 127)), "cutting toward zero"),
    "decoded ties away": (
        _as_int8(lambda v: (v.sign() * (v.abs() + 0.5).floor()).clamp(-127, 127)),
        "int8 with ties away",
    ),
    "decoded wraps": (_as_int8(lambda v: v.round().to(torch.int64)), "weight beyond 127 wraps"),
    "not rotated": ({"int8_linear": _without_rotation}, "rotation of the activations missing"),
    "row before": (
        {"int8_linear": lambda x, w, scale, *args, **more: _int8(x, w, scale.roll(-1), *args, **more)},
        "scale of the next row",
    ),
    "no bias": ({"int8_linear": lambda *args, bias, **more: _int8(*args, bias=None, **more)}, "bias missing"),
    "decoded to 128": (_as_int8(lambda v: (v * 128 / 127).round().clamp(-127, 127)), None),  # on no page
}

_quantized4, _multiplied4 = eager_svdquant.quantize_svdquant_w4a4, eager_svdquant.scaled_mm_svdquant_w4a4


def _rounded4(**changed):
    """Other arguments of the function that rounds to 4 bits and multiplies by the branch's first factor."""

    def quantize(x, smooth, down, pad, unsigned, low):
        args = {
            "x": x,
            "smooth": smooth,
            "lora_down": down,
            "pad_size": pad,
            "act_unsigned": unsigned,
            "lora_x": low,
        }
        return _quantized4(**args | {name: change(args[name], args) for name, change in changed.items()})

    return {"quantize_svdquant_w4a4": quantize}


def _multiplied(**changed):
    """Other arguments of the product."""
    names = ("act", "wgt", "ascales", "wscales", "lora_act_in", "lora_up", "bias", "act_unsigned")

    def multiply(*values):
        args: dict[str, Any] = dict(zip(names, values, strict=True))
        return _multiplied4(**args | {name: change(args[name]) for name, change in changed.items()})

    return {"scaled_mm_svdquant_w4a4": multiply}


def _codes4(largest, rounding):
    """Codes of another rounding, or under another scale."""

    def quantize(x, smooth, down, pad, unsigned, low):
        _, _, branch = _quantized4(x, smooth, down, pad, unsigned, low)
        groups = (x / smooth).reshape(len(x), -1, 64)
        scale = groups.abs().amax(dim=-1).clamp(min=1e-10) / (15 if unsigned else largest)
        ends = (0, 15) if unsigned else (-7, 7)
        codes = rounding(groups / scale.unsqueeze(-1)).clamp(*ends).reshape(x.shape)
        return eager_svdquant._pack_int4_row_major(codes.to(torch.int8)), scale.T.contiguous(), branch

    return {"quantize_svdquant_w4a4": quantize}


def _read_as_transposed(t):
    return t.reshape(t.shape[::-1]).T.contiguous()


SVDQUANT = {
    "no branch": (_multiplied(lora_act_in=torch.zeros_like), "low-rank branch left out"),
    "first factor transposed": (_rounded4(lora_down=lambda t, args: _read_as_transposed(t)), "first factor"),
    "second factor transposed": (_multiplied(lora_up=_read_as_transposed), "second factor"),
    "smoothed branch": (_rounded4(lora_x=lambda t, args: args["x"] / args["smooth"]), "smoothed activations"),
    "smoothing multiplied": (_rounded4(smooth=lambda t, args: 1 / t), "multiplied for divided"),
    "no smoothing": (_rounded4(smooth=lambda t, args: torch.ones_like(t)), "smoothing missing"),
    "truncated": (_codes4(7, torch.trunc), "toward zero"),
    "over 8": (_codes4(8, torch.round), "max |x| / 8"),
    "float16 scale": (_multiplied(ascales=lambda t: t.half().float()), "float16"),
    "nibbles": (_multiplied(wgt=lambda t: (t << 4) | ((t >> 4) & 15)), "other order"),
    "offset codes": (_multiplied(wgt=lambda t: t ^ -120), "a number less 8"),
    "next group": (_multiplied(wscales=lambda t: t.roll(-1, 0)), "next group"),
    "scales transposed": (_multiplied(wscales=_read_as_transposed), "scales of groups transposed"),
    "weight transposed": (_multiplied(wgt=_read_as_transposed), "read as its transpose"),
    "no bias": (_multiplied(bias=lambda t: None), "bias missing"),
    "no shift": ({"_GELU_UNSIGNED_SHIFT": 0.0}, "shift of unsigned"),
    "shifted branch": (_rounded4(lora_x=lambda t, args: args["x"]), "shifted activations"),
    "row before": (_multiplied(ascales=lambda t: t.roll(1, 1)), None),  # on no page
}


_multiplied_w4a4 = eager_w4a4.int4_linear


def _w4a4(**changed):
    """Other arguments of the product of codes of 4 bits."""

    def multiply(x, weight, x_scale, weight_scale, bias, dtype):
        args = {
            "x_qdata": x,
            "weight": weight,
            "x_scale": x_scale,
            "weight_scale": weight_scale,
            "bias": bias,
        }
        return _multiplied_w4a4(
            **args | {name: change(args[name]) for name, change in changed.items()}, out_dtype=dtype
        )

    return {"int4_linear": multiply}


def _rows_w4a4(largest, rounding):
    def quantize(x, stochastic_rounding=0):
        scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / largest
        codes = rounding(x / scale).clamp(-7, 7).to(torch.int8)
        return eager_w4a4._pack_int4_row_major(codes), scale.reshape(-1)

    return {"quantize_signed_int4_rowwise": quantize}


W4A4 = {
    "truncated": (_rows_w4a4(7, torch.trunc), "toward zero"),
    "over 8": (_rows_w4a4(8, torch.round), "max |x| / 8"),
    "nibbles": (_w4a4(weight=lambda t: (t << 4) | ((t >> 4) & 15)), "other order"),
    "offset codes": (_w4a4(weight=lambda t: t ^ -120), "offset by 8"),
    "next row": (_w4a4(weight_scale=lambda t: t.roll(-1)), "scale of the next row"),
    "row before": (_w4a4(x_scale=lambda t: t.roll(1)), "row before"),
    "float16 scale": (_w4a4(x_scale=lambda t: t.half().float()), "float16"),
    "weight transposed": (_w4a4(weight=_read_as_transposed), "read as its transpose"),
    "no bias": (_w4a4(bias=lambda t: None), "bias missing"),
    "not rotated": ({"_rotate_activation": lambda x, h, g: x}, "rotation of the activations missing"),
    "sylvester": ({"_build_hadamard": _sylvester}, "Sylvester"),
    "no -8": (
        _w4a4(weight=lambda t: eager_w4a4._pack_int4_row_major(eager_w4a4._unpack_int4_row_major(t).clamp(-7, 7))),
        "-7, not -8",
    ),
    "codes of 3 bits": (_rows_w4a4(3, torch.round), None),  # seen, but on no page
}


_multiplied_awq = eager_awq.gemv_awq_w4a16


def _awq(**changed):
    """Other arguments of the product with weights of 4 bits."""
    names = ("x", "qweight", "wscales", "wzeros", "bias", "group_size")

    def multiply(*values):
        args: dict[str, Any] = dict(zip(names, values, strict=True))
        return _multiplied_awq(**args | {name: change(args[name], args) for name, change in changed.items()})

    return {"gemv_awq_w4a16": multiply}


def _zero_of(change):
    """Other zero points. change: z -> z; the package's own are s (8 - z)"""
    return _awq(wzeros=lambda t, args: args["wscales"] * (8 - change(8 - t / args["wscales"])))


W4A16 = {
    "nibbles": (_awq(qweight=lambda t, args: (t << 4) | ((t >> 4) & 15)), "other order"),
    "signed codes": (_awq(qweight=lambda t, args: t ^ -120, wzeros=lambda t, args: 0 * t), "two's complement"),
    "no zero points": (_awq(wzeros=lambda t, args: 0 * t), "8 subtracted"),
    "zero of the code 0": (_zero_of(lambda z: 0 * z), "nothing subtracted"),
    "one more": (_zero_of(lambda z: z + 1), "one too large"),
    "zeros of the next group": (_zero_of(lambda z: z.roll(-1, 0)), "zero points of the next group"),
    "next group": (
        _awq(
            wscales=lambda t, args: t.roll(-1, 0),
            wzeros=lambda t, args: t / args["wscales"] * args["wscales"].roll(-1, 0),
        ),
        "scales of the next group",
    ),
    "first group": (
        _awq(
            wscales=lambda t, args: t[:1].expand(t.shape),
            wzeros=lambda t, args: t / args["wscales"] * args["wscales"][:1],
        ),
        "first scale",
    ),
    "bfloat16 input": (_awq(x=lambda t, args: t.bfloat16().to(t.dtype)), "bfloat16"),
    "no bias": (_awq(bias=lambda t, args: None), "bias missing"),
    "weight transposed": (_awq(qweight=lambda t, args: _read_as_transposed(t)), None),  # on no page
}


def _weak(change):
    return {"quantize_per_tensor_fp8": change}


def _cut(x, scale, kind=torch.float8_e4m3fn):
    """Round toward zero: where the nearest is larger, the next code below."""
    codes = _fp8(x, scale, kind)
    over = codes.float().abs() > (x / scale).abs()
    return torch.where(over, codes.view(torch.uint8) - 1, codes.view(torch.uint8)).view(kind)


def _layout(change):
    """The scale that TensorCoreFP8Layout keeps."""

    def quantize(tensor, scale=None, dtype=torch.float8_e4m3fn):
        codes, params = _scaled(tensor, scale=scale, dtype=dtype)
        return codes, type("Params", (), {"scale": change(params.scale)})

    return quantize


FP8 = {
    "truncated": (_weak(_cut), "toward zero"),
    "not clipped": (_weak(lambda x, scale, kind: (x / scale).to(kind)), "NaN or infinity"),
    "fnuz": (_weak(lambda x, scale, kind: _fp8(x, scale * 448 / 240, kind)), None),
    "e5m2": (_weak(lambda x, scale, kind: _fp8(x, scale, torch.float8_e5m2)), "other 8-bit float"),
    "inverse scale": (_layout(lambda scale: 1 / scale), "divided"),
    "float16 scale": (_layout(lambda scale: scale.half().float()), "float16"),
    "bfloat16 scale": (_layout(lambda scale: scale.bfloat16().float()), "bfloat16"),
    "no scale": (_layout(torch.ones_like), None),
    "given ignored": (lambda tensor, scale=None, dtype=None: _scaled(tensor, dtype=dtype), "given scale ignored"),
}


_mx, _expanded = eager.quantize_mxfp8, eager.dequantize_mxfp8


def _powers(change):
    """The activations under other powers of two. change: the largest numbers of blocks -> logarithms"""

    def quantize(x):
        blocks = x.reshape(len(x), -1, 32)
        most = blocks.abs().amax(dim=-1)
        powers = torch.where(most == 0, torch.ones(()), torch.exp2(change(most)))
        codes = (blocks / powers.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn)
        exponents = (powers.log2() + 127).to(torch.uint8)
        return codes.reshape(x.shape), to_blocked(exponents, flatten=False).view(torch.float8_e8m0fnu)

    return {"quantize_mxfp8": quantize}


def _up(most):
    return (most / 448).log2().ceil()


def _cut_blocks(x):
    _, scales = _mx(x)
    powers = torch.exp2(from_blocked(scales.view(torch.uint8), len(x), x.shape[1] // 32).float() - 127)
    return _cut(x, powers.repeat_interleave(32, dim=1).clamp(min=1e-30)), scales


def _weight(change):
    """The weight's exponents, in rows, changed. The activations are widened first."""
    calls = itertools.count()

    def expand(codes, scales, kind):
        if next(calls) % 2 == 0:
            return _expanded(codes, scales, kind)
        exponents = change(from_blocked(scales.view(torch.uint8), len(codes), codes.shape[1] // 32))
        blocked = to_blocked(exponents.to(torch.uint8), flatten=False).view(torch.float8_e8m0fnu)
        return _expanded(codes, blocked, kind)

    return {"dequantize_mxfp8": expand}


def _tiles_as_rows(exponents):
    return to_blocked(exponents, flatten=False).reshape(-1)[: exponents.numel()].reshape(exponents.shape)


MXFP8 = {
    "the specification's scale": (_powers(lambda most: most.log2().floor() - 8), "round the other way"),
    "the nearest power": (_powers(lambda most: (most / 448).log2().round()), "nearest power"),
    "truncated": ({"quantize_mxfp8": _cut_blocks}, "toward zero"),
    "not rounded": (
        {
            "quantize_mxfp8": lambda x: (x, None),
            "dequantize_mxfp8": lambda codes, scales, kind: (
                codes if scales is None else _expanded(codes, scales, kind)
            ),
        },
        "not rounded",
    ),
    "a bias of 126": (_weight(lambda exponents: exponents + 1), "less 126"),
    "tiles read as rows": (_weight(_tiles_as_rows), "read as rows"),
    "the next block's": (_weight(lambda exponents: exponents.roll(-1, 1)), "next block"),
    "scales transposed": (_weight(_read_as_transposed), "transposed"),
}


def _caught(engine, runner, op, replacements):
    with ExitStack() as stack:
        for name, replacement in replacements:
            stack.enter_context(patch(name, replacement))
        wrong = conform.run(runner, [engine], [case for case in _CASES if case.op == op])
    return [r for r in wrong if r.status == "fail"]


def _bugs():
    where = "comfy_kitchen.backends.eager.quantization."
    for name, (replaced, words) in INT8.items():
        yield name, "linear_int8", [(where + function, new) for function, new in replaced.items()], words
    for name, (replaced, words) in W4A8.items():
        where_w4a8 = where.replace("quantization", "w4a8_int8")
        yield name, "linear_w4a8", [(where_w4a8 + function, new) for function, new in replaced.items()], words
    for name, (replaced, words) in SVDQUANT.items():
        where_svdquant = where.replace("quantization", "svdquant")
        yield (
            name,
            "linear_svdquant",
            [(where_svdquant + function, new) for function, new in replaced.items()],
            words,
        )
    for name, (replaced, words) in W4A4.items():
        where_w4a4 = where.replace("quantization", "convrot_w4a4")
        yield name, "linear_w4a4", [(where_w4a4 + function, new) for function, new in replaced.items()], words
    for name, (replaced, words) in W4A16.items():
        yield (
            name,
            "linear_w4a16",
            [(where.replace("quantization", "awq") + f, new) for f, new in replaced.items()],
            words,
        )
    for name, (replaced, words) in MXFP8.items():
        yield name, "linear_mxfp8", [(where + function, new) for function, new in replaced.items()], words
    for name, (replaced, words) in FP8.items():
        if callable(replaced):
            yield name, "linear_fp8", [("comfy_kitchen.tensor.TensorCoreFP8Layout.quantize", replaced)], words
            continue
        yield name, "linear_fp8", [("comfy_kitchen." + function, new) for function, new in replaced.items()], words


@pytest.mark.parametrize(
    ("name", "op", "replacements", "words"), [pytest.param(*b, id=f"{b[1]} {b[0]}") for b in _bugs()]
)
def test_a_bug_is_seen_and_named(name, op, replacements, words, engines, runner):
    failed = _caught(engines["comfy-kitchen"], runner, op, replacements)
    assert failed, f"{name} gets through"
    causes = [cause for r in failed for cause in r.causes]
    assert words is None or any(words in cause for cause in causes), [(r.case, r.looks) for r in failed]
