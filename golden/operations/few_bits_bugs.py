"""What engines get wrong in linear layers in few bits."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from refsd.golden.mutations import BATCH, F16_INPUT, NO_BIAS, other_input, widened
from refsd.golden.operation import Inputs, Mutant, Params, Wrong
from refsd.golden.operations.few_bits import Rule, Weight, in_codes, scale_of_weight, static_numbers, stored_weight
from refsd.golden.operations.linear import read_as_transposed, shifted_rows, without_tail
from refsd.kernels.quant.activation_codes import divided, to_grid
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.quantization import Quantization, Quantized, given_zero, in_blocks, quantize, rotated, zeros


class RowMutant(Mutant[Wrong]):
    """A known bug of rows, or of their rotation: not of a convolution that is computed by rows."""


class Parts:
    """The steps of a product in float32, of which a bug replaces one."""

    def __init__(self, rule: Rule, inputs: Inputs, params: Params, weight_of: Weight = stored_weight):
        self.inputs, self.how = inputs, rule(params)
        self.a = Arithmetic(FLOAT32)
        self.x = np.asarray(inputs["x"].values(), np.float32)
        self.weight = weight_of(inputs).astype(np.float32)
        self.scale = scale_of_weight(inputs)
        self.bias = inputs["bias"].values() if "bias" in inputs else None
        self.static, self.zero = static_numbers(inputs)

    def quantized(self, how: Quantization | None = None) -> Quantized:
        return quantize(self.x, how or self.how, lambda y: y, self.static, self.zero)

    def zeros(self, q: Quantized) -> np.ndarray:
        """The zero points of x, [..., 1]."""
        return given_zero(self.zero, self.x) if self.static is not None else zeros(self.x, self.how, q.scale)

    def sums(self, q: Quantized) -> np.ndarray:
        return (q.values.astype(np.float64) @ self.weight.astype(np.float64).T).astype(np.float32)

    def result(self, q: Quantized) -> np.ndarray:
        return self.finished(self.sums(q) * (q.scale * self.scale))

    def plain(self, y: np.ndarray) -> np.ndarray:
        return (y if self.bias is None else y + self.bias).astype(np.float32)

    def finished(self, y: np.ndarray) -> np.ndarray:
        return in_codes(self.plain(y), self.inputs)


def wrong(rule: Rule, change: Callable[[Parts], np.ndarray | None], weight_of: Weight = stored_weight) -> Wrong:
    return lambda op, inputs, params: change(Parts(rule, inputs, params, weight_of))


def with_rule(**changes) -> Callable[[Parts], np.ndarray | None]:
    """Other fields of the Quantization; None where nothing changes."""

    def change(parts: Parts) -> np.ndarray | None:
        how = replace(parts.how, **changes)
        return None if how == parts.how else parts.result(parts.quantized(how))

    return change


def with_block_scales(scales_of: Callable[[np.ndarray, Quantization], np.ndarray]) -> Callable[[Parts], np.ndarray]:
    """Other scales of the activations' blocks. scales_of: [..., n, block], rule -> [..., n, 1]"""

    def change(parts: Parts) -> np.ndarray:
        q, blocks = parts.quantized(), in_blocks(parts.x, parts.how.block)
        scales = scales_of(blocks, parts.how)
        values = to_grid(divided(blocks, scales), parts.how.grid, parts.how.rounding) * scales
        values = values.reshape(*parts.x.shape[:-1], -1)[..., : parts.x.shape[-1]]
        return parts.result(q._replace(values=divided(values, q.scale)))

    return change


def _other_sharing(parts: Parts) -> np.ndarray | None:
    if parts.static is not None or parts.how.scale == "none":
        return None
    return with_rule(scale={"row": "tensor", "tensor": "row"}[parts.how.scale])(parts)


def _scale_of_the_row_before(parts: Parts) -> np.ndarray | None:
    q = parts.quantized()
    rows = q.scale.reshape(-1, 1)
    if len(rows) < 2:
        return None
    return parts.result(q._replace(scale=np.roll(rows, 1, axis=0).reshape(q.scale.shape)))


def _divided_scale(parts: Parts) -> np.ndarray:
    q = parts.quantized()
    return parts.finished(divided(parts.sums(q) * parts.scale, q.scale))


def _scale_through(dtype, early: bool = False) -> Callable[[Parts], np.ndarray]:
    """early: before activations are divided by it"""

    def change(parts: Parts) -> np.ndarray:
        q = parts.quantized()
        scale = q.scale.astype(dtype).astype(np.float32)
        return _under(parts, scale) if early else parts.result(q._replace(scale=scale))

    return change


def _under(parts: Parts, scale: np.ndarray) -> np.ndarray:
    """The activations' codes, and the product, under another scale."""
    x = rotated(parts.x, parts.how.rotation) if parts.how.rotation else parts.x
    v = quantize(divided(x, scale), replace(parts.how, rotation=0, scale="none"), lambda y: y)
    return parts.result(Quantized(v.values, scale))


def _scale_of_power(parts: Parts) -> np.ndarray | None:
    """Activations are divided by their scale; the product is multiplied by the next power of two."""
    if parts.static is not None or parts.how.scale == "none":
        return None
    q = parts.quantized()
    with np.errstate(divide="ignore"):
        return parts.result(q._replace(scale=np.exp2(np.ceil(np.log2(q.scale)))))


def _not_rounded(parts: Parts) -> np.ndarray:
    x = rotated(parts.x, parts.how.rotation) if parts.how.rotation else parts.x
    return parts.result(Quantized(x, np.ones((1,) * x.ndim, np.float32)))


def _of_other_largest(
    largest: Callable[[np.ndarray, int | None], np.ndarray | None],
) -> Callable[[Parts], np.ndarray | None]:
    """The scale of another largest number; what is beyond it is clipped. largest: x, axis (None: all) -> number"""

    def change(parts: Parts) -> np.ndarray | None:
        if parts.static is not None or parts.how.zero_point:
            return None
        x = rotated(parts.x, parts.how.rotation) if parts.how.rotation else parts.x
        found = largest(x, -1 if parts.how.scale == "row" else None)
        if found is None:
            return None
        return _under(parts, (np.maximum(found, 1e-30) / parts.how.reach).astype(np.float32))

    return change


def scale_of_the_first(*counts: int) -> dict[str, Callable[[Parts], np.ndarray | None]]:
    """One block of threads looks for the largest number of a tensor or of a row, in as many as it has."""

    def among(n: int):
        def largest(x: np.ndarray, axis: int | None) -> np.ndarray | None:
            x = x if axis == -1 else x.reshape((1,) * (x.ndim - 1) + (-1,))
            return np.abs(x[..., :n]).max(-1, keepdims=True) if x.shape[-1] > n else None

        return _of_other_largest(largest)

    return {f"activations' scale from the first {n} numbers alone": among(n) for n in counts}


def _scale_along(axis: int, fewest: int) -> Callable[[Parts], np.ndarray | None]:
    """One scale for all numbers along another axis than the last. fewest: axes that x has at the least"""

    def change(parts: Parts) -> np.ndarray | None:
        if parts.static is not None or parts.x.ndim < fewest:
            return None
        if parts.x.shape[axis] == 1:  # each number would have a scale of its own: nothing is rounded
            return None
        x = rotated(parts.x, parts.how.rotation) if parts.how.rotation else parts.x
        q = quantize(np.moveaxis(x, axis, -1), replace(parts.how, rotation=0, scale="row"), lambda y: y)
        return parts.finished(np.moveaxis(q.values * q.scale, -1, axis) @ parts.weight.T * parts.scale)

    return change


def _nan_of_zero_rows(parts: Parts) -> np.ndarray | None:
    zero = ~parts.x.any(axis=-1, keepdims=True)
    return np.where(zero, np.float32(np.nan), parts.result(parts.quantized())) if zero.any() else None


def _scaled_bias(parts: Parts) -> np.ndarray | None:
    if parts.bias is None:
        return None
    q = parts.quantized()
    return (parts.sums(q) + parts.bias) * (q.scale * parts.scale)


def _bias_in_steps(parts: Parts) -> np.ndarray | None:
    """The bias is a whole number of both scales' product, and is added as that number."""
    if parts.bias is None:
        return None
    q = parts.quantized()
    steps = q.scale * parts.scale
    return (parts.sums(q) * steps + np.rint(divided(parts.bias, steps))).astype(np.float32)


def _float16_sums(parts: Parts) -> np.ndarray:
    q = parts.quantized()
    sums = parts.sums(q).astype(np.float16).astype(np.float32)
    return parts.finished(sums * (q.scale * parts.scale))


def _static_ignored(parts: Parts) -> np.ndarray | None:
    if parts.static is None:
        return None
    parts.static = None
    return parts.result(parts.quantized())


def _next_scale(scale: np.ndarray) -> np.ndarray | None:
    return np.roll(scale, -1) if len(scale) > 1 else None


def _first_scale(scale: np.ndarray) -> np.ndarray | None:
    return np.full_like(scale, scale[0]) if len(scale) > 1 else None


_NAN = "NaN where a row of x is zero"
_OF_ROWS = {
    "scale of the whole tensor taken for each row's, or the reverse": _other_sharing,
    _NAN: _nan_of_zero_rows,
}


def read_on(
    rule: Rule, weight_of: Weight = stored_weight, blocks: Sequence[int] = (32, 64, 128)
) -> tuple[Mutant[Wrong], ...]:
    """Return the bugs of blocks that rows, or their parts, do not fill: what is behind is read, of x and weight."""

    def bug(block: int, parts: int = 1, of: str = "rows") -> Mutant[Wrong]:
        def change(p: Parts) -> np.ndarray | None:
            length, rest = divmod(p.x.shape[-1], parts)
            by = -length % block
            if not by or rest or p.how.rotation:
                return None
            at = (np.arange(parts)[:, None] * length + np.arange(length + by)).ravel()
            p.x, p.weight = (widened(t, by)[..., at] for t in (p.x, p.weight))
            return p.result(p.quantized())

        return Mutant(f"{of} are read on to whole {block}s of numbers", wrong(rule, change, weight_of))

    return *(bug(block) for block in blocks), *(bug(block, 2, "2 parts of each row") for block in (32, 64))


def product_mutants(
    rule: Rule, weight_of: Weight = stored_weight, given: bool = True, scaled: bool = True
) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs that every page has.

    given:  False where x has no scale that was measured beforehand
    scaled: False where the only scales are powers of two, of blocks
    """
    of_scales = {
        **{
            f"activations' scale rounded to {name}{words}": _scale_through(dtype, early)
            for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16))
            for words, early in (("", False), (", before they are divided by it", True))
        },
        "activations' scale rounded up to a power of two once they are divided by it": _scale_of_power,
        **({"activations' given scale ignored": _static_ignored} if given else {}),
        "bias added before the scales are multiplied in": _scaled_bias,
        "bias in units of both scales' product, and not multiplied by it": _bias_in_steps,
    }
    changes = {
        **({"result divided by the activations' scale": _divided_scale} if scaled else {}),
        "activations rounded toward zero": with_rule(rounding="zero"),
        "activations not rounded: the weight was widened instead": _not_rounded,
        **(of_scales if scaled else {}),
        "sum of products stored in float16": _float16_sums,
    }
    of_weight = (
        Mutant("weight's scale missing", other_input("weight_scale", np.ones_like)),
        Mutant("weight's scale inverted", other_input("weight_scale", lambda scale: 1 / scale)),
    )
    of_rows = _OF_ROWS if scaled else {_NAN: _nan_of_zero_rows}
    return (
        *(Mutant(name, wrong(rule, change, weight_of)) for name, change in changes.items()),
        *(RowMutant(name, wrong(rule, change, weight_of)) for name, change in of_rows.items()),
        *(of_weight if scaled else ()),
        RowMutant("weight read as its transpose", other_input("weight", read_as_transposed)),
        RowMutant("last columns left out", other_input("x", without_tail)),
        RowMutant("row i read from number i on, not from i K", other_input("x", shifted_rows)),
        NO_BIAS,
        BATCH,
        F16_INPUT,
    )


def row_mutants(rule: Rule, weight_of: Weight = stored_weight, given: bool = True) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs of formats without blocks: scales of rows, ties, and the sign of the largest number.

    given: as in product_mutants; a row's own scale puts no number on a tie that the two rules round differently
    """
    along = {
        "each row has the scale of the row before": _scale_of_the_row_before,
        "activations' scale of each channel, not of each row": _scale_along(-2, 2),
        "activations' scale taken over the items, not over the channels": _scale_along(0, 3),
    }
    changes = {
        **({"activations' ties rounded away from zero": with_rule(rounding="away")} if given else {}),
        "activations' scale from max x, not max |x|": _of_other_largest(lambda x, axis: x.max(axis, keepdims=True)),
        **scale_of_the_first(128),
    }
    return (
        *(RowMutant(name, wrong(rule, change, weight_of)) for name, change in along.items()),
        *(Mutant(name, wrong(rule, change, weight_of)) for name, change in changes.items()),
        Mutant("weight's scale of the next row", other_input("weight_scale", _next_scale)),
        Mutant("weight's first scale used for all rows", other_input("weight_scale", _first_scale)),
    )
