"""Linear layers whose weights alone are in 4 bits: y = sum_k s_g (q_k - z_g) x_k + b, g the group of column k.

AWQ's, GPTQ's, HQQ's and MatMulNBits' product. q stands two a byte, the first in the lower half; without zero points
z is 8; the last group of a row may be cut short.

Source: ONNX Runtime, com.microsoft.MatMulNBits; comfy_kitchen 0.2.40, backends/eager/awq.py.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.golden.bounds import Run, bias_of, sums
from refsd.golden.mutations import BATCH, F16_INPUT, NO_BIAS, Wrong, other_input
from refsd.golden.operation import Inputs, Mutant, Operation, Params, optional, values
from refsd.golden.operations.few_bits import product_case
from refsd.golden.operations.linear import read_as_transposed, shifted_rows, without_tail
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, moved_in_turn
from refsd.kernels.quant import w4a8
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, INT8_ROWS
from refsd.numerics.quantization import rounded

_MIDDLE = 8.0


class Codes(NamedTuple):
    """A weight in 4 bits. q: float32 [O, K]; scale, zero: float32 [O, G]; group: columns under one scale"""

    q: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    group: int

    def wide(self, of_groups: np.ndarray) -> np.ndarray:
        """Numbers of groups for each column. [O, G] -> [O, K]"""
        return np.repeat(of_groups, self.group, axis=1)[:, : self.q.shape[1]]

    def matrix(self) -> np.ndarray:
        return (self.q - self.wide(self.zero)) * self.wide(self.scale)


def codes(inputs: Inputs, params: Params) -> Codes:
    scale = inputs["group_scale"].values().astype(np.float32)
    q = w4a8.unpack(inputs["weight"].values().astype(np.uint8)).astype(np.float32)
    zero = (
        inputs["group_zero"].values().astype(np.float32) if "group_zero" in inputs else np.full_like(scale, _MIDDLE)
    )
    return Codes(q, scale, zero, params["group"])


def _matrix(a: Arithmetic, inputs: Inputs, params: Params) -> np.ndarray:
    of = codes(inputs, params)
    scale = values(a, inputs["group_scale"]).astype(a.numerics.compute_dtype)
    return a.settled(of._replace(q=of.q.astype(scale.dtype), scale=scale).matrix())


def _run(a: Arithmetic, inputs: Inputs, params: Params) -> np.ndarray:
    return a.linear(values(a, inputs["x"]), _matrix(a, inputs, params), optional(a, inputs, "bias"), "u4")


def _bound(run: Run) -> Bound:
    """y = W x + b: |W| dx + dW (|x| + dx), the sum of K products and b, the rounding of y.

    An engine may sum s q x and s z x apart: every rounding of a product or a sum counts as of s (q + z) x. dW is
    what storing the scale and the widened weight loses, and three roundings: an engine's own zero may be s (8 - z).
    """
    of, u = codes(run.stored, run.params), run.u
    through = run.numerics.input_of("u4")
    matrix = of._replace(scale=run.inputs["group_scale"]).matrix()
    size = (of.q + of.wide(of.zero)) * of.wide(np.abs(run.inputs["group_scale"]))
    W = np.abs(matrix)
    dW = np.abs(of.q - of.wide(of.zero)) * of.wide(run.moved("group_scale"))
    dW = dW + 3 * u * size + run.between(size) + moved_in_turn(matrix, run.numerics.storage, run.numerics.products)
    x, dx = np.abs(run.inputs["x"]), run.moved("x", through)
    b, db = bias_of(run)
    terms = Terms()
    if dx.any():
        terms.add(dx @ W.T, np.sqrt(dx**2 @ (W**2).T / 3))
    terms.add((x + dx) @ dW.T, np.sqrt((x + dx) ** 2 @ (dW**2).T / 3)).add(db)
    absolute = (x + dx) @ (size + dW).T + b + db
    squares = (x + dx) ** 2 @ ((size + dW) ** 2).T + b**2
    return run.rounded(terms.add(*sums(run, "linear", x.shape[-1], absolute, squares, run.truth, through)))


def _fits(shapes: Mapping[str, tuple[int, ...]], params: Params) -> bool:
    K, group = shapes["x"][-1], params["group"]
    return group > 0 and shapes["group_scale"][1] == -(-K // group)


_FLOAT32 = Arithmetic(FLOAT32)


def _wrong(change: Callable[[Codes], Codes | np.ndarray | None]) -> Wrong:
    """The weight read otherwise. change: its codes -> other ones, or the matrix [O, K]; None: nothing to be seen"""

    def wrong(op, inputs, params):
        of = codes(inputs, params)
        other = change(of)
        matrix = other.matrix() if isinstance(other, Codes) else other
        if matrix is None or np.array_equal(matrix, of.matrix()):
            return None
        x, bias = inputs["x"].values(), optional(_FLOAT32, inputs, "bias")
        return _FLOAT32.linear(x, np.ascontiguousarray(matrix, np.float32), bias)

    return wrong


def _of_zero(change: Callable[[Codes], np.ndarray | None]) -> Wrong:
    """Other zero points, where there are any."""

    def other(of: Codes) -> Codes | None:
        zero = None if (of.zero == _MIDDLE).all() else change(of)
        return None if zero is None else of._replace(zero=zero)

    return _wrong(other)


def _of_scale(change: Callable[[np.ndarray], np.ndarray | None]) -> Wrong:
    def other(of: Codes) -> Codes | None:
        scale = change(of.scale)
        return None if scale is None else of._replace(scale=scale)

    return _wrong(other)


def _next_group(t: np.ndarray) -> np.ndarray:
    return np.roll(t, -1, axis=1)


def _next_row(t: np.ndarray) -> np.ndarray:
    return np.roll(t, -1, axis=0)


def _first_group(t: np.ndarray) -> np.ndarray:
    return np.repeat(t[:, :1], t.shape[1], axis=1)


def _in_order(order: Callable[[np.ndarray], np.ndarray]) -> Callable[[Codes], Codes]:
    """Codes of a row in another order."""
    return lambda of: of._replace(q=of.q[:, order(np.arange(of.q.shape[1]))])


def _swapped(k: np.ndarray) -> np.ndarray:
    return np.minimum(k ^ 1, len(k) - 1)


def _halves(k: np.ndarray) -> np.ndarray:
    return np.concatenate([k[::2], k[1::2]])


def _eights(k: np.ndarray) -> np.ndarray:
    """AWQ's order of eight columns, 0 2 4 6 1 3 5 7, left in place."""
    return k.reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].ravel() if len(k) % 8 == 0 else k


def _as_wide(factor: float) -> Callable[[Codes], Codes | None]:
    """Groups of another width: behind the last scale of a row stand those of the next."""

    def other(of: Codes) -> Codes | None:
        group = int(of.group * factor)
        if of.scale.shape[1] < 2 or group < 1:
            return None
        at = np.arange(of.scale.shape[0])[:, None] * of.scale.shape[1] + np.arange(of.q.shape[1]) // group
        scale, zero = (np.append(t.ravel(), np.resize(t, at.max() + 1))[at] for t in (of.scale, of.zero))
        return of._replace(scale=scale, zero=zero, group=1)

    return other


def _through_rows(of: Codes) -> Codes | None:
    """Groups are counted through the matrix, not from the beginning of each row."""
    O, K = of.q.shape
    if K % of.group == 0:
        return None
    at = np.arange(O * K).reshape(O, K) // of.group
    return of._replace(scale=of.scale.ravel()[at], zero=of.zero.ravel()[at], group=1)


def _without_rest(of: Codes) -> np.ndarray | None:
    whole = of.q.shape[1] // of.group * of.group
    return None if whole == of.q.shape[1] else np.pad(of.matrix()[:, :whole], [(0, 0), (0, of.q.shape[1] - whole)])


def _rest_as_before(of: Codes) -> Codes | None:
    if of.q.shape[1] % of.group == 0 or of.scale.shape[1] < 2:
        return None
    scale, zero = (np.concatenate([t[:, :-1], t[:, -2:-1]], axis=1) for t in (of.scale, of.zero))
    return of._replace(scale=scale, zero=zero)


def _rounded_input(op, inputs, params):
    x = rounded(inputs["x"].values().astype(np.float32), INT8_ROWS, lambda y: y)
    return _FLOAT32.linear(x, codes(inputs, params).matrix(), optional(_FLOAT32, inputs, "bias"))


def _through(dtype) -> Callable[[Codes], np.ndarray]:
    return lambda of: of.matrix().astype(dtype).astype(np.float32)


def _case(label: str, x, out: int, *, group=32, zeros=True, **more):
    groups = -(-x[-1] // group)
    weight = {
        "weight": Recipe((out, x[-1] // 2), "u8", "token_ids", 0, n=256),
        "group_scale": Recipe((out, groups), data="positive", exponent=-24),
    }
    if zeros:
        weight["group_zero"] = Recipe((out, groups), "u8", "token_ids", 0, n=16)
    return product_case("linear_w4a16", label, x, out, weight, {"group": group}, **more)


LINEAR_W4A16 = Operation(
    "linear_w4a16",
    "Multiply by a matrix of codes of 4 bits, with a scale and a zero point for each group of a row.",
    family="linear",
    inputs={
        "x": "[..., K]",
        "weight": "[O, K/2]",
        "group_scale": "[O, G]",
        "group_zero?": "[O, G]",
        "bias?": "[O]",
    },
    output="[..., O]",
    run=_run,
    bound=_bound,
    mutants=(
        Mutant("codes of a byte in the other order", _wrong(_in_order(_swapped))),
        Mutant("lower halves of a row's bytes, then the upper ones", _wrong(_in_order(_halves))),
        Mutant("codes of each eight left in AWQ's order", _wrong(_in_order(_eights))),
        Mutant(
            "codes read as two's complement, without zero points",
            _wrong(lambda of: of._replace(q=(of.q + 8) % 16 - 8, zero=np.zeros_like(of.zero))),
        ),
        Mutant("nothing subtracted from the codes", _wrong(lambda of: of._replace(zero=np.zeros_like(of.zero)))),
        Mutant("8 subtracted for the zero points", _of_zero(lambda of: np.full_like(of.zero, _MIDDLE))),
        Mutant("zero points one too large", _of_zero(lambda of: of.zero + 1)),
        Mutant("zero points one too small", _of_zero(lambda of: of.zero - 1)),
        Mutant("zero points of the next group", _of_zero(lambda of: _next_group(of.zero))),
        Mutant("zero points of the next row", _of_zero(lambda of: _next_row(of.zero))),
        Mutant("each row's first zero point for all of its groups", _of_zero(lambda of: _first_group(of.zero))),
        Mutant("zero points of groups transposed", _of_zero(lambda of: read_as_transposed(of.zero))),
        Mutant(
            "zero points in the other order within a byte",
            _of_zero(
                lambda of: of.zero[:, _swapped(np.arange(of.zero.shape[1]))] if of.zero.shape[1] > 1 else None
            ),
        ),
        Mutant(
            "zero points subtracted behind the scale",
            _wrong(lambda of: of.q * of.wide(of.scale) - of.wide(of.zero)),
        ),
        Mutant("zero points added", _of_zero(lambda of: -of.zero)),
        Mutant("scales of the next group", _of_scale(_next_group)),
        Mutant("scales of the next row", _of_scale(_next_row)),
        Mutant("each row's first scale for all of its groups", _of_scale(_first_group)),
        Mutant("scales of groups transposed", _of_scale(read_as_transposed)),
        Mutant("scales of groups missing", _of_scale(np.ones_like)),
        Mutant("scales rounded to float16", _of_scale(lambda s: s.astype(np.float16).astype(np.float32))),
        Mutant("groups half as wide", _wrong(_as_wide(0.5))),
        Mutant("groups twice as wide", _wrong(_as_wide(2.0))),
        Mutant("groups counted on through the rows", _wrong(_through_rows)),
        Mutant("last group, which is cut short, left out", _wrong(_without_rest)),
        Mutant("last group, which is cut short, has the scale of the one before", _wrong(_rest_as_before)),
        Mutant("weight widened to float16", _wrong(_through(np.float16))),
        Mutant("weight widened to bfloat16", _wrong(_through(ml_dtypes.bfloat16))),
        Mutant("activations rounded to int8", _rounded_input),
        Mutant("last columns left out", other_input("x", without_tail)),
        Mutant("row i read from number i on, not from i K", other_input("x", shifted_rows)),
        NO_BIAS,
        BATCH,
        F16_INPUT,
    ),
    cases=(
        _case("tokens", (33, 256), 48, zeros=False),
        _case("zero-tokens", (33, 256), 48, group=64),
        _case("zero-batch", (2, 9, 128), 20),
        _case("row", (1, 256), 77, group=128, zeros=False, bias=False),
        _case("zero-row", (1, 512), 33, group=128),
        # The last group of each row is cut short.
        _case("zero-short", (7, 160), 33, group=64),
        _case("zero-odd", (7, 78), 20, group=16),
        _case("zero-outliers", (9, 256), 20, x_data="outliers"),
        # As many groups as rows: the transpose has the shape.
        _case("zero-square", (5, 320), 10),
        _case("zero-one-group", (7, 128), 20, group=128),
        # More inputs and outputs than a block has threads.
        _case("zero-large", (3, 2080), 300, group=32),
    ),
    params={"group": 32},
    fits=_fits,
)

OPERATIONS = (LINEAR_W4A16,)
