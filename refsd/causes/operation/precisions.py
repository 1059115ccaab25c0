"""Lower precisions than the declared one as causes, down to activations in few bits, and those of a whole model."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from refsd.golden.judge import Inputs
from refsd.golden.operation import Operation, Params
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import (
    FLOAT32,
    FLOAT64,
    FP8_TENSOR,
    GGML_CPU,
    INT8_GROUPS,
    INT8_ROWS,
    SAGE_SUMS,
    TORCH_BF16,
    TORCH_F16,
    TORCH_TF32,
    Float16Sums,
    Numerics,
)
from refsd.numerics.quantization import Int8Scores, Quantization
from refsd.numerics.tensor import stored

Named = Iterator[tuple[str, np.ndarray]]
_PRECISIONS = {"float16": TORCH_F16, "bfloat16": TORCH_BF16}
_OF_PRODUCTS = {"linear", "conv2d", "conv3d", "attention"}
# To what engines round the input of linear layers, besides ggml's blocks.
_FEW_BITS = (
    *(Quantization(kind, scale) for kind in ("int8", "f8_e4m3", "f8_e5m2") for scale in ("tensor", "row", "none")),
    INT8_GROUPS,
    *(Quantization("uint8", scale, zero_point=True) for scale in ("tensor", "row")),
)
# To what they round that of a product with blocks, with the length of its own blocks.
_BLOCKS = {"q8_0": 32, "q8_1": 32, "q8_k": 256, "f16": 1, "bf16": 1}
# To what those of a model may round it, whatever the type of the weight.
_OF_MODELS = tuple(replace(rule, scale=scale) for rule in (FP8_TENSOR, INT8_ROWS) for scale in ("tensor", "row"))
_WEIGHTS = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i8")
# Sums by a loop of float16 instructions, and by tensor cores.
_SUMS = (Float16Sums(), Float16Sums(step=16))
# The share of sums that are numbers of the type in which they are added up.
_ON_GRID = 0.98
_SMALL, _FACTORS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}, (("x",), ("x", "weight"))


def in_precisions(op: Operation, inputs: Inputs, params: Params, declared: Numerics) -> Named:
    """Yield the answers in float16 and bfloat16, and with float16 sums of products, unless these are declared."""
    for name, numerics in _PRECISIONS.items():
        if numerics.storage != declared.storage:
            with np.errstate(all="ignore"):
                yield f"computed in {name}, not as {declared.name}", op.answer(Arithmetic(numerics), inputs, params)
    if op.name == "linear":
        yield from _in_few_bits(op, inputs, params, declared)
    if op.name == "attention" and declared.scores is None:
        numerics = replace(declared, scores=Int8Scores(), sums=SAGE_SUMS)
        yield f"scores are products of {numerics.scores}", op.answer(Arithmetic(numerics), inputs, params)
    if op.name in _OF_PRODUCTS and not declared.sums:
        for sums in _SUMS:
            numerics = replace(
                declared, products="f16", conv="f16", sums=dict.fromkeys(("linear", "conv", "attention"), sums)
            )
            with np.errstate(all="ignore"):
                y = op.answer(Arithmetic(numerics), inputs, params)
            yield f"products added up in float16, not in {declared.compute}", y


def coarse_sums(op: Operation, inputs: Inputs, params: Params, actual: np.ndarray) -> Named:
    """Yield the answer itself if its sums, before the bias, are numbers of a smaller type.

    They are the right sums or those of rounded factors, rounded once; else sums rounded on the way, in any order,
    if they are no farther off than the roundings of K terms: u sqrt(K / 6) of their size.
    """
    if op.name not in ("linear", "conv2d", "conv3d") or not np.isfinite(actual).all():
        return
    factors = {name: inputs[name] for name in ("x", "weight")}

    def summed(names: Sequence[str] = (), dtype: Any = None) -> np.ndarray:
        small = {name: stored(factors[name].values().astype(dtype).astype(np.float32)) for name in names}
        return op.answer(Arithmetic(FLOAT64), {**factors, **small}, params)

    right = summed()
    bias = op.answer(Arithmetic(FLOAT64), inputs, params) - right
    sums, slack = actual - bias, 2.0**-23 * (np.abs(actual) + np.abs(bias))
    for called, dtype in _SMALL.items():
        near, once = (y.astype(dtype).astype(np.float64) for y in (sums, right))
        if not np.mean(np.abs(near - sums) <= slack) > _ON_GRID > 2 * np.mean(np.abs(once - right) <= slack):
            continue
        made, text = (near + bias).astype(np.float32), f"sums rounded to {called} before a bias is added"
        ways = {f", {' and '.join(n)} to {t}": summed(n, _SMALL[t]) for n, t in product(_FACTORS, _SMALL)}
        known = [
            text + how for how, y in {"": right, **ways}.items() if np.mean(y.astype(dtype) == near) > _ON_GRID
        ]
        yield from ((words, made) for words in known)
        lost, size = (np.sqrt(np.mean(y**2)) for y in (sums - right, right))
        most = float(ml_dtypes.finfo(dtype).eps) / 2 * np.sqrt(inputs["weight"].values()[0].size / 6)
        if known[:1] in ([], [text]) and lost <= most * size:
            yield f"products added up in {called}", made


def of_models(numerics: Numerics) -> Iterator[tuple[str, Numerics]]:
    """Yield precisions of a whole model other than the declared one, in words and as numerics."""
    for profile in (TORCH_F16, TORCH_BF16, GGML_CPU, TORCH_TF32):
        if profile != numerics:
            yield f"it computes as {profile.name}, and not as {numerics.name}", profile
    if numerics.scores is None:
        codes = Int8Scores()
        yield f"attention's scores are products of {codes}", replace(numerics, scores=codes, sums=SAGE_SUMS)
    for how in _OF_MODELS:
        if how not in numerics.activations.values():
            yield f"activations rounded to {how}", replace(numerics, activations=dict.fromkeys(_WEIGHTS, how))


def broken_requests(op: Operation, inputs: Inputs, declared: Numerics) -> dict[str, Numerics]:
    """Return the numerics of engines that ignore what their caller requested, by the words for it."""
    sums, factor = (declared.requested.get(what) for what in ("sums", "activations"))
    ways: dict[str, Numerics] = {}
    if sums not in (None, "F16") and declared.flash is not None:
        ways[f"the request for {sums} sums is ignored: they are in float16"] = replace(declared, flash_sum="f16")
    elif sums not in (None, "F16") and op.name == "linear":
        halves = replace(declared, products="f16", activations={}, sums={"linear": Float16Sums()})
        ways[f"the request for {sums} sums is ignored: they are in float16"] = halves
    if factor is not None and op.name == "linear":
        kind = inputs["weight"].product_type
        for through in dict.fromkeys(("f16", "bf16", GGML_CPU.activations.get(kind, "f16"))):
            block = BLOCK_TYPES[str(through)].block if through in BLOCK_TYPES else 1
            if through != declared.input_of(kind) and inputs["x"].shape[-1] % block == 0:
                words = f"the request for {factor} activations is ignored: they are rounded to {through}"
                ways[words] = replace(declared, activations={kind: through}, sums={})
    return ways


def _in_few_bits(op: Operation, inputs: Inputs, params: Params, declared: Numerics) -> Named:
    kind = inputs["weight"].product_type
    types = _BLOCKS if kind in BLOCK_TYPES else {}
    fitting = [through for through, block in types.items() if inputs["x"].shape[-1] % block == 0]
    for how in (*fitting, *_FEW_BITS):
        if declared.input_of(kind) == how:
            continue
        numerics = replace(FLOAT32, activations={kind: how})
        yield f"activations rounded to {how}", op.answer(Arithmetic(numerics), inputs, params)
