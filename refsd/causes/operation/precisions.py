"""Lower precisions than the declared one as causes, down to activations in few bits."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from refsd.golden.judge import Inputs
from refsd.golden.operation import Operation, Params
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, TORCH_BF16, TORCH_F16, Float16Sums, Numerics
from refsd.numerics.quantization import Quantization

_PRECISIONS = {"float16": TORCH_F16, "bfloat16": TORCH_BF16}
_OF_PRODUCTS = {"linear", "conv2d", "conv3d", "attention"}
# To what engines round the input of linear layers, besides ggml's blocks.
_FEW_BITS = tuple(
    Quantization(kind, scale) for kind in ("int8", "f8_e4m3", "f8_e5m2") for scale in ("tensor", "row", "none")
)
# Sums by a loop of float16 instructions, and by tensor cores.
_SUMS = (Float16Sums(), Float16Sums(step=16))


def in_precisions(
    op: Operation, inputs: Inputs, params: Params, declared: Numerics
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the answers in float16 and bfloat16, and with float16 sums of products, unless these are declared."""
    for name, numerics in _PRECISIONS.items():
        if numerics.storage != declared.storage:
            with np.errstate(all="ignore"):
                yield f"computed in {name}, not as {declared.name}", op.answer(Arithmetic(numerics), inputs, params)
    if op.name == "linear":
        yield from _in_few_bits(op, inputs, params, declared)
    if op.name in _OF_PRODUCTS and not declared.sums:
        for sums in _SUMS:
            numerics = replace(
                declared, products="f16", conv="f16", sums=dict.fromkeys(("linear", "conv", "attention"), sums)
            )
            with np.errstate(all="ignore"):
                answer = op.answer(Arithmetic(numerics), inputs, params)
            yield f"products added up in float16, not in {declared.compute}", answer


def _in_few_bits(
    op: Operation, inputs: Inputs, params: Params, declared: Numerics
) -> Iterator[tuple[str, np.ndarray]]:
    kind = inputs["weight"].product_type
    for how in _FEW_BITS:
        if declared.input_of(kind) == how:
            continue
        numerics = replace(FLOAT32, activations={kind: how})
        yield f"activations rounded to {how}", op.answer(Arithmetic(numerics), inputs, params)
