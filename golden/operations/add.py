"""Sums and products of two tensors, one broadcast to the other."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import other_input, to_float16
from refsd.golden.operation import Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms

_INPUTS = {"a": "[...]", "b": "broadcastable to a"}


def _bound_mul(run: Run) -> Bound:
    a, b, da, db = np.abs(run.inputs["a"]), np.abs(run.inputs["b"]), run.moved("a"), run.moved("b")
    return run.rounded(Terms().add(a * db).add((b + db) * da).add(run.u * np.abs(run.truth)))


def read_along_the_wrong_axis(b: np.ndarray) -> np.ndarray:
    """Read the numbers with the fastest axis as the slowest."""
    return b.T.reshape(b.shape)


def repeated_wrongly(op, inputs, params):
    """Repeat b's memory until a is full, as if b broadcast along its leading axes."""
    a, b = (inputs[name].values() for name in ("a", "b"))
    flat = np.resize(b.ravel(), a.shape).astype(np.float32)
    return a + flat if op.name == "add" else a * flat


_MUTANTS = (
    Mutant("b repeated along the wrong axes", repeated_wrongly),
    Mutant("b read along the wrong axis", other_input("b", read_along_the_wrong_axis)),
    Mutant("b silently float16", other_input("b", to_float16)),
    Mutant("b left out: zeros stand for it", other_input("b", lambda b: None if b.ndim == 0 else np.zeros_like(b))),
    Mutant("b doubled: it is put in twice", other_input("b", lambda b: 2 * b)),
    Mutant("b of the other sign", other_input("b", np.negative)),
)


def _cases(op: str) -> tuple[Case, ...]:
    a, others = (2, 6, 5, 7), {"channel": (1, 6, 1, 1), "item": (2, 6, 1, 1), "row": (1, 1, 5, 7)}
    return tuple(
        Case(f"{op}/f32/{label}-2x6x5x7-{'x'.join(map(str, b))}", op, {"a": Recipe(a), "b": Recipe(b)})
        for label, b in others.items()
    )


ADD = Operation(
    "add",
    "a + b",
    family="gates",
    inputs=_INPUTS,
    output="[...]",
    channel=1,
    run=lambda a, inputs, params: a.add(values(a, inputs["a"]), values(a, inputs["b"])),
    bound=lambda run: run.rounded(Terms().add(run.moved("a")).add(run.moved("b")).add(run.u * np.abs(run.truth))),
    mutants=_MUTANTS,
    cases=_cases("add"),
)

MUL = Operation(
    "mul",
    "a * b",
    family="gates",
    inputs=_INPUTS,
    output="[...]",
    channel=1,
    run=lambda a, inputs, params: a.multiply(values(a, inputs["a"]), values(a, inputs["b"])),
    bound=_bound_mul,
    mutants=_MUTANTS,
    cases=_cases("mul"),
)

OPERATIONS = (ADD, MUL)
