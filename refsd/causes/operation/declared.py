"""What an operation declares: its axes, by their letters, and other values for its parameters."""

import re
from collections.abc import Callable, Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np

from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation
from refsd.numerics.tensor import StoredTensor, stored


def with_changed(op, inputs, params, changed: dict[str, np.ndarray]) -> np.ndarray:
    return answer(op, {**inputs, **{name: _tensor(x, inputs[name]) for name, x in changed.items()}}, params)


def _tensor(x: np.ndarray, like: StoredTensor) -> StoredTensor:
    kind = like.values().dtype
    return stored(np.ascontiguousarray(x, kind if kind.kind in "iu" else np.float32))


def axes_of(shape: str) -> list[str]:
    """Return the axes of a declared shape."""
    found = re.search(r"\[([^\]]*)\]", shape)
    return [part.strip() for part in found[1].split(",")] if found else []


def letters(op: Operation, name: str, ndim: int) -> list[str]:
    """Return the page's names of an input's axes, or of the output's (""): "H" of [N, C, H, W]; "" for no name."""
    declared = next((shape for key, shape in {**op.inputs, "": op.output}.items() if key.rstrip("?") == name), "")
    parts = axes_of(declared)
    if "..." in parts:
        parts = parts[parts.index("...") + 1 :]
    parts = [""] * (ndim - len(parts)) + parts[max(0, len(parts) - ndim) :]
    return [part if re.fullmatch(r"[A-Z]\w*", part) else "" for part in parts]


# Kernels do not check their parameters, so try only values that fit the inputs.
_FITS: dict[str, Callable[[Any, Any, Inputs], bool]] = {
    "padding": lambda value, own, inputs: min(np.ravel(value)) >= 0,
    **dict.fromkeys(("stride", "dilation"), lambda value, own, inputs: min(np.ravel(value)) > 0),
    "num_groups": lambda value, own, inputs: value > 0 and inputs["x"].shape[1] % value == 0,
    "axes_dim": lambda value, own, inputs: sorted(value) == sorted(own),
    **dict.fromkeys(("diagonal", "down", "right"), lambda value, own, inputs: True),
}


def fits(name: str, other: Any, own: Any, inputs: Inputs) -> bool:
    return isinstance(own, bool) or (name in _FITS and _FITS[name](other, own, inputs))


def plain(value: Any) -> str:
    return "(" + ", ".join(map(plain, value)) + ")" if isinstance(value, tuple) else f"{value}"


def other_values(value: Any) -> Iterator[Any]:
    """Yield values that may replace a parameter by mistake; a float is fitted instead (fitted_constants.py)."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value - 1, value + 1, 2 * value, value // 2, 0, 1, 8, 16, 32)
    elif isinstance(value, tuple | list) and len(value) <= 8 and all(isinstance(v, int | float) for v in value):
        yield from _other_tuples(tuple(value))


def _other_tuples(value: tuple) -> Iterator[tuple]:
    n = len(value)
    # One more on a side, one less on the other.
    for i in range(0, n - 1, 2) if n % 2 == 0 else ():
        for by in (-1, 1):
            yield (*value[:i], value[i] + by, value[i + 1] - by, *value[i + 2 :])
    yield value[::-1]
    for i, j in combinations(range(n), 2):
        yield tuple(value[{i: j, j: i}.get(k, k)] for k in range(n))
    for pairs in permutations(range(n // 2)) if n in (4, 6) else ():
        yield tuple(value[2 * i + side] for i in pairs for side in (0, 1))
    for order in ((0, 0, 2, 2), (1, 1, 3, 3), (1, 0, 3, 2)) if n == 4 else ():
        yield tuple(value[i] for i in order)
    for i in range(n):
        yield (value[i],) * n
        for by in (-1, 1):
            yield tuple(v + by * (i == k) for k, v in enumerate(value))
        yield tuple(0 if i == k else v for k, v in enumerate(value))
    yield from (tuple(v + by for v in value) for by in (-1, 1))
    yield (0,) * n
