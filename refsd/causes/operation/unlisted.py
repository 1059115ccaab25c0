"""Try bugs that no page lists on one call of an operation: in its blocks, steps, constants, declaration.

They come after the listed bugs, which have better names, and before causes that are fitted to the error alone.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice

import numpy as np

from refsd.causes.operation.block_parts import wrong_values
from refsd.causes.operation.code_values import code_values, grid_entries, other_indices, other_layouts
from refsd.causes.operation.fitted_constants import fitted
from refsd.causes.operation.function_steps import ranges, straight_lines
from refsd.causes.operation.generated_mutants import generated, simplest
from refsd.causes.operation.other_entries import other_entries
from refsd.causes.operation.overflows import overflows
from refsd.causes.operation.precisions import coarse_sums
from refsd.causes.operation.product_steps import other_tokens
from refsd.causes.operation.product_terms import product_terms
from refsd.causes.operation.row_sums import row_sums, softmax_sums
from refsd.causes.operation.small_floats import misread_floats
from refsd.causes.operation.softmax_weights import key_counts
from refsd.causes.operation.steps import bordered, stepwise
from refsd.golden.dimensions import sizes_of
from refsd.golden.mutations import Inapplicable, answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.golden.operations import OPERATIONS
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

# The work for one call, some seconds of CPU, counted so that every machine tries the same bugs. Each bug costs the
# product of the operation's sizes (the multiply-adds of a convolution) and a constant; and the fewest bugs tried.
WORK, _EACH = 9_000_000_000, 100_000
_LEAST = 20
# Bytes of answers to keep for fitted_causes.py, which tries them in one place alone.
KEPT = 200_000_000

Named = Iterator[tuple[str, np.ndarray]]


def unlisted(
    op: Operation,
    inputs: Inputs,
    params: Params,
    actual: np.ndarray,
    gap: bool = False,
    stepped: bool = False,
    only: Collection[str] | None = None,
    found_by: dict[str, str] | None = None,
) -> Named:
    """Yield (name, wrong answer in float32, of the right shape), the likeliest first, as many as WORK allows.

    params: complete
    actual: the engine's answer, of the right shape
    gap:    found is one constant or not finite where it is wrong (see is_gap): try only overflows, what computes
            nothing, and wrongly read blocks and codes
    stepped: the bugs of `stepwise` were tried already, and are left out
    only:   the finders to ask; None: all
    found_by: takes the finder of each name
    """
    finders = _finders(op, inputs, params, actual, gap, stepped)
    wanted = {finder: find for finder, find in finders.items() if only is None or finder in only}
    for finder, name, y in islice(_all(wanted, actual), most_bugs(op, inputs, params)):
        if found_by is not None:
            found_by.setdefault(name, finder)
        yield name, y


def most_bugs(op: Operation, inputs: Inputs, params: Params) -> int:
    """Return how many bugs to try on one call."""
    shapes = {name: tensor.shape for name, tensor in inputs.items()}
    try:
        sizes = sizes_of(op, shapes, params)
        # Attention multiplies by D, then by E: the larger stands for both.
        sizes["D"] = max(sizes.get("D", 1), sizes.pop("E", 1))
        sizes.pop("R", 1)  # a low-rank product is added, and smaller
        sizes.pop("G" if "group_scale" in inputs else "", 1)
        work = math.prod(sizes.values())
    except BadInput:  # a call with other shapes than its page declares
        work = max(map(math.prod, shapes.values()), default=1)
    return max(WORK // (work + _EACH), _LEAST)


def _finders(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray, gap: bool, stepped: bool
) -> dict[str, Callable[[], Named]]:
    call = (op, inputs, params)
    first = {
        "overflows": lambda: overflows(*call, actual),
        "ranges": lambda: ranges(*call, actual),
        "blocks": lambda: _of_blocks(*call, wrong_values, other_indices),
        "simplest": lambda: simplest(*call),
        "small_floats": lambda: _of_blocks(*call, misread_floats),
        "codes": lambda: _of_codes(op, inputs, actual),
    }
    if gap:
        return first
    return {
        **first,
        "product_terms": lambda: product_terms(*call, actual),
        "coarse_sums": lambda: coarse_sums(*call, actual),
        **({} if stepped else {"steps": lambda: stepwise(*call)}),
        "other_tokens": lambda: other_tokens(*call, actual),
        "row_sums": lambda: row_sums(*call, actual),
        "softmax_sums": lambda: softmax_sums(*call, actual),
        "key_counts": lambda: key_counts(*call, actual),
        "other_entries": lambda: other_entries(*call, actual),
        "straight_lines": lambda: straight_lines(*call, actual),
        "bordered": lambda: bordered(*call),
        "fitted": lambda: fitted(*call, actual),
        "generated": lambda: generated(*call, OPERATIONS),
        "more_softmax_sums": lambda: softmax_sums(*call, actual, more=True),
    }


def _all(finders: Mapping[str, Callable[[], Named]], actual: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    for finder, find in finders.items():
        with suppress(Inapplicable):
            yield from ((finder, name, y) for name, y in find() if y.shape == actual.shape)


def _of_blocks(op: Operation, inputs: Inputs, params: Params, *changes: Callable) -> Named:
    """Yield the answers with one part of the blocks of an input changed."""
    for name, tensor in inputs.items():
        for phrase, values in chain.from_iterable(change(tensor) for change in changes):
            y = answer(op, {**inputs, name: stored(values)}, params)
            if not np.isnan(y).all():  # NaN everywhere is no evidence for one of them
                yield phrase, y


def _of_codes(op: Operation, inputs: Inputs, actual: np.ndarray) -> Named:
    """Yield the expanded values with some codes read as others, or from elsewhere."""
    for tensor in inputs.values() if op.name == "dequantize" and np.isfinite(actual).all() else ():
        for fit in (code_values, grid_entries, other_layouts):
            yield from ((phrase, y.astype(np.float32)) for phrase, y in fit(tensor, actual))


def never(name: str) -> bool:
    return False


def explaining(
    candidates: Named,
    explains: Callable[[np.ndarray], bool],
    tried: dict[str, np.ndarray],
    suffices: Callable[[str], bool] = never,
) -> dict[str, np.ndarray]:
    """Return the candidates that explain an answer; add others to `tried`, each once, up to KEPT bytes in all.

    explains: a candidate's answer in float64 -> whether it explains the engine's
    suffices: the name of one that does -> whether others need not be tried
    """
    suspects: dict[str, np.ndarray] = {}
    room, kept = KEPT - sum(y.nbytes for y in tried.values()), {hash(y.tobytes()) for y in tried.values()}
    for name, y in candidates:
        wrong = y.astype(np.float64)
        if explains(wrong):
            suspects.setdefault(name, wrong)
            if suffices(name):
                break
        elif room > y.nbytes and (known := hash(y.tobytes())) not in kept:
            kept.add(known)
            room -= y.nbytes
            tried.setdefault(name, y)
    return suspects
