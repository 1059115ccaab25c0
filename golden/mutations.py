"""The parts of known bugs: changes of parameters, of inputs, of outputs, or another operation's answer."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from refsd.golden.operation import Inputs, Mutant, Operation, Params, Wrong
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import stored


class Inapplicable(BadInput):
    """The operation is not defined for what a bug makes of a case: the case cannot show this bug."""


def widened(x: np.ndarray, by: int, axis: int = -1) -> np.ndarray:
    """Read an axis further, into what lies behind it; zeros lie behind the last. [..., n] -> [..., n + by]"""
    shape = [*x.shape]
    each = math.prod(shape[axis:][1:])
    n, more = shape[axis] * each, by * each
    shape[axis] += by
    return sliding_window_view(np.pad(x.ravel(), (0, more)), n + more)[::n].reshape(shape)


def answer(op: Operation, inputs: Inputs, params: Params) -> np.ndarray:
    """Compute y in float32, as the honest engine that contains a bug would.

    Raises Inapplicable if it cannot be computed for shapes that the operation does not allow, such as a filter
    wider than its picture.
    """
    try:
        return op.answer(Arithmetic(FLOAT32), inputs, params)
    except Exception as error:
        if op.fits({name: tensor.shape for name, tensor in inputs.items()}, op.complete(inputs, params)):
            raise
        raise Inapplicable(f"{op.name}: {error}") from error


def with_bug(mutant: Mutant[Wrong], op: Operation, inputs: Inputs, params: Params) -> np.ndarray | None:
    """Return the answer with the bug; None if the case cannot show it. params: with or without the defaults"""
    with np.errstate(all="ignore"), suppress(Inapplicable):
        return mutant.change(op, inputs, op.complete(inputs, params))
    return None


def other_params(**changes: Callable[[Any], Any]) -> Wrong:
    """Replace parameters by functions of themselves."""

    def wrong(op, inputs, params):
        return answer(op, inputs, {k: changes[k](v) if k in changes else v for k, v in params.items()})

    return wrong


def turned(name: str) -> Wrong:
    """Exchange the vertical and the horizontal number of a parameter, the last two of three."""

    def wrong(op, inputs, params):
        *frames, down, across = params[name] if isinstance(params[name], list | tuple) else (0, 0)
        return answer(op, inputs, {**params, name: (*frames, across, down)}) if down != across else None

    return wrong


def other_input(name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Wrong:
    """Replace one input's values; a block type becomes the float32 values that it holds."""

    def wrong(op, inputs, params):
        if name not in inputs:
            return None
        before = inputs[name].values()
        after = change(before)
        if after is None or (after.shape == before.shape and np.array_equal(after, before)):
            return None
        dtype = before.dtype if before.dtype.kind in "iu" else np.float32
        return answer(op, {**inputs, name: stored(np.ascontiguousarray(after, dtype))}, params)

    return wrong


def without(name: str) -> Wrong:
    def wrong(op, inputs, params):
        return answer(op, {k: v for k, v in inputs.items() if k != name}, params) if name in inputs else None

    return wrong


def other_run(run: Callable[[Arithmetic, Inputs, Params], np.ndarray], **more: Any) -> Wrong:
    """Return another operation's answer. more: parameters that only it has"""
    return lambda op, inputs, params: run(Arithmetic(FLOAT32), inputs, {**more, **params})


def other_output(change: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    return lambda op, inputs, params: change(answer(op, inputs, params))


def to_float16(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def first_of_batch(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x[:1], x.shape)


def read_as_transposed_image(x: np.ndarray) -> np.ndarray:
    N, C, H, W = x.shape
    return x.reshape(N, C, W, H).swapaxes(2, 3)


def rows_left_out(first: int) -> Wrong:
    """Rows from this one on are zeros; no difference where there are none."""

    def wrong(op, inputs, params):
        y = answer(op, inputs, params)
        if y.size <= first * y.shape[-1]:
            return None
        y.reshape(-1, y.shape[-1])[first:] = 0
        return y

    return wrong


BATCH = Mutant("second item of the batch reads the first", other_input("x", first_of_batch))
NO_BIAS = Mutant("bias missing", without("bias"))
ZERO_BIAS = Mutant("bias missing", other_input("bias", np.zeros_like))
NO_WEIGHT = Mutant("weight missing", other_input("weight", np.ones_like))


def _usual_eps(op, inputs, params):
    return None if params["eps"] == 1e-5 else answer(op, inputs, {**params, "eps": 1e-5})


EPS = (
    Mutant("eps ten times too large", other_params(eps=lambda eps: 10 * eps)),
    Mutant("eps ten times too small", other_params(eps=lambda eps: eps / 10)),
    Mutant("eps missing", other_params(eps=lambda eps: 0.0)),
    Mutant("eps is 1e-5, whatever is asked", _usual_eps),
)


def eps_in_the_sum(length: str, count: Callable[[Sequence[int], Params], int]) -> Mutant[Wrong]:
    """(sum + eps) / D for sum / D + eps. length: how D is called; count: shape of x, params -> D"""

    def wrong(op, inputs, params):
        return answer(op, inputs, {**params, "eps": params["eps"] / count(inputs["x"].shape, params)})

    return Mutant(f"eps is divided by {length}: it is added to the sum of squares, not to their mean", wrong)


EPS_IN_THE_ROW = eps_in_the_sum("D", lambda shape, params: shape[-1])
F16_INPUT = Mutant("activations silently float16", other_input("x", to_float16))
F16_WEIGHT = Mutant("weights silently float16", other_input("weight", to_float16))


def rows_beyond_half_the_columns(op, inputs, params):
    """Compute as many rows as x has columns in two."""
    return rows_left_out(max(inputs["x"].shape[-1] // 2, 1))(op, inputs, params)


# More rows than fit into 15 bits, and than a grid has groups.
MANY_ROWS = tuple(Mutant(f"rows from {rows} on not computed", rows_left_out(rows)) for rows in (32768, 65535))
SIDES_SWAPPED = Mutant("height and width swapped", other_input("x", read_as_transposed_image))
