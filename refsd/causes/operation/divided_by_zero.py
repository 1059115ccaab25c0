"""NaN where a row of an input, or a block of it, has nothing that could be divided by: zeros, or one number."""

from collections.abc import Callable, Iterator

import numpy as np

from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params

_BLOCKS = (256, 128, 64, 32, 16)
# Rows [.., n] -> True for each that an engine may fail on.
_ROWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a row of {} is zero": lambda x: (x == 0).all(axis=-1),
    "a row of {} is one number throughout": lambda x: np.ptp(x, axis=-1) == 0,
    **{
        f"a block of {n} of {{}} is zero": lambda x, n=n: (
            (x[..., : x.shape[-1] // n * n].reshape(*x.shape[:-1], -1, n) == 0).all(axis=-1).any(axis=-1)
        )
        for n in _BLOCKS
    },
    "a row of {} has a zero": lambda x: (x == 0).any(axis=-1),
}


def divided_by_zero(
    op: Operation, inputs: Inputs, params: Params, found: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, answer with NaN in those rows) if some rows of the answer are not finite throughout."""
    if found.ndim < 2:
        return
    lost = np.asarray(~np.isfinite(found).any(axis=-1))
    if not lost.any() or lost.all():
        return
    right = answer(op, inputs, params)
    for name, tensor in inputs.items():
        x = tensor.values()
        if x.dtype.kind != "f" or x.shape[:-1] != found.shape[:-1]:
            continue
        for words, rows in _ROWS.items():
            if x.shape[-1] and np.array_equal(rows(x), lost):
                yield f"NaN where {words.format(name)}", np.where(lost[..., None], np.float32(np.nan), right)
                return
