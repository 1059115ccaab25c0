"""An operation, as each page of operations/ declares it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.judge import Inputs, Mutant
from refsd.golden.rounding import Bound
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor

Params = Mapping[str, Any]
# (operation, inputs, params) -> y with a bug that engines have had, otherwise in float32; None if the bug makes no
# difference to the case
Wrong = Callable[["Operation", Inputs, Params], np.ndarray | None]

REQUIRED = object()

IMAGE = "[N, C, H, W]"
ROWS = "[..., D]"


class Operation(NamedTuple):
    """An operation: declaration, reference, bound, known bugs and cases.

    name:    as cases ask for it
    what:    one sentence
    inputs:  argument -> shape; a name that ends in "?" may be absent
    output:  the shape of "y"
    run:     the reference: looks up its arguments and hands them to Arithmetic, which rounds -> y
    bound:   how far an honest engine may be from the truth, element by element
    mutants: known bugs that the cases must find
    cases:   the questions put to engines
    params:  parameter -> its default; REQUIRED where there is none
    channel: the axis of "y" along which an error is reported as a channel
    family:  the operations that it belongs to: "norms"; "shapes" if it moves or resamples numbers
    fits:    shapes, complete params -> whether they are valid together, beyond what the declared shapes say
    """

    name: str
    what: str
    inputs: Mapping[str, str]
    output: str
    run: Callable[[Arithmetic, Inputs, Params], np.ndarray]
    bound: Callable[[Run], Bound]
    mutants: tuple[Mutant[Wrong], ...]
    cases: tuple[Case, ...]
    params: Mapping[str, Any] = {}
    channel: int = -1
    family: str = "shapes"
    fits: Callable[[Mapping[str, tuple[int, ...]], Params], bool] = lambda shapes, params: True

    def complete(self, inputs: Inputs, params: Params) -> dict[str, Any]:
        """Return the parameters with their defaults filled in.

        Raises BadInput for a missing or unknown argument or parameter.
        """
        required = {name for name in self.inputs if not name.endswith("?")}
        known = {name.rstrip("?") for name in self.inputs}
        if required - inputs.keys() or inputs.keys() - known:
            raise BadInput(f"{self.name}: inputs {sorted(inputs)}, expected {', '.join(self.inputs)}")
        if params.keys() - self.params.keys():
            expected = ", ".join(self.params) or "none"
            raise BadInput(f"{self.name}: params {sorted(params)}, expected some of {expected}")
        full = {**self.params, **params}
        missing = [name for name, value in full.items() if value is REQUIRED]
        if missing:
            raise BadInput(f"{self.name}: missing params {', '.join(missing)}")
        return full

    def answer(self, arithmetic: Arithmetic, inputs: Inputs, params: Params) -> np.ndarray:
        """Compute y under the arithmetic's numerics, in which it may overflow. Raises BadInput, see `complete`."""
        full = self.complete(inputs, params)
        with np.errstate(over="ignore"):
            return self.run(arithmetic, inputs, full)

    def bound_of(self, numerics: Numerics, inputs: Inputs, params: Params, truth: np.ndarray) -> Bound:
        """Bound the error of "y" under the numerics. truth: the float64 answer. Raises BadInput, see `complete`."""
        values = {name: np.asarray(tensor.values(), np.float64) for name, tensor in inputs.items()}
        types = {name: tensor.type for name, tensor in inputs.items()}
        full = self.complete(inputs, params)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.bound(Run(numerics, values, types, full, np.asarray(truth, np.float64), inputs))


def values(a: Arithmetic, tensor: StoredTensor) -> np.ndarray:
    """Return a tensor's values as the numerics store them."""
    return a.store(tensor.values())


def optional(a: Arithmetic, inputs: Inputs, name: str) -> np.ndarray | None:
    """Return an argument, expanded; None if it is absent."""
    return a.expand(inputs[name]) if name in inputs else None
