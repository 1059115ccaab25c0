"""Concatenation of two tensors."""

import numpy as np

from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import other_input, to_float16
from refsd.golden.operation import Mutant, Operation, values
from refsd.golden.recipe import Recipe


def _run(a, inputs, params):
    return np.concatenate([values(a, inputs["a"]), values(a, inputs["b"])], axis=params["axis"])


def b_first(op, inputs, params):
    a, b = (inputs[name].values() for name in ("a", "b"))
    return np.concatenate([b, a], axis=params["axis"])


def interleaved(op, inputs, params):
    """Take slices of the two parts in turn."""
    a, b = (np.moveaxis(inputs[name].values(), params["axis"], 0) for name in ("a", "b"))
    n = min(len(a), len(b))
    y = np.concatenate([np.stack([a[:n], b[:n]], axis=1).reshape(2 * n, *a.shape[1:]), a[n:], b[n:]])
    return np.moveaxis(y, 0, params["axis"])


_PICTURE = Recipe((2, 5, 6, 8))

CONCAT = Operation(
    "concat",
    "b behind a along an axis.",
    inputs={"a": "[...]", "b": "a's shape but for the axis"},
    output="[...]",
    params={"axis": 1},
    run=_run,
    bound=movement,
    mutants=(
        Mutant("b first", b_first),
        Mutant("interleaved", interleaved),
        Mutant("b silently float16", other_input("b", to_float16)),
    ),
    cases=(
        Case("concat/f32/channels-n2-h6-w8", "concat", {"a": _PICTURE, "b": Recipe((2, 3, 6, 8))}),
        Case("concat/f32/tokens-n2-d20", "concat", {"a": Recipe((2, 7, 20)), "b": Recipe((2, 5, 20))}),
        Case(
            "concat/f32/width-n2-c3-h5",
            "concat",
            {"a": Recipe((2, 3, 5, 4)), "b": Recipe((2, 3, 5, 7))},
            {"axis": 3},
        ),
    ),
)

OPERATIONS = (CONCAT,)
