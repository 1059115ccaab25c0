"""Find which entry of a list of numbers, such as a bias or the heads' sinks, an engine took at each place."""

from collections.abc import Iterator

import numpy as np

from refsd.causes.generic.sources import rules
from refsd.causes.operation.generated_mutants import letters
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.tensor import stored

# Numbers of all answers together, one for each entry.
_MOST = 1 << 22
# Share of the places at which a rule's entry must be the nearest one.
_NEARLY_ALL = 0.9


def other_entries(
    op: Operation, inputs: Inputs, params: Params, found: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) with the entries of a one-dimensional input read by another rule."""
    axes = [f"axis {letter or a}" for a, letter in enumerate(letters(op, "", found.ndim))]
    flat = {found.ndim - 1: "all rows", found.ndim: "all elements"}
    for name, tensor in inputs.items():
        x = tensor.values()
        if x.ndim != 1 or x.dtype.kind != "f" or len(x) < 2 or len(x) * found.size > _MOST:
            continue
        each = np.stack([answer(op, {**inputs, name: stored(np.full_like(x, value))}, params) for value in x])
        if each.shape[1:] != found.shape or not np.isfinite(found).all():
            continue
        nearest = np.full(found.shape, np.inf)
        for y in each:
            np.minimum(nearest, np.abs(y - found), out=nearest)
        for rule, read in rules(found.shape, len(x), axes, flat):
            y = np.take_along_axis(each, read[None], 0)[0]
            if np.mean(np.abs(y - found) <= nearest) >= _NEARLY_ALL:
                yield f"entries of {name} are read {rule}", y
