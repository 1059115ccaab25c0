"""The axes that an operation declares, by their letters, and answers with inputs changed along them."""

import re

import numpy as np

from refsd.golden.mutations import answer
from refsd.golden.operation import Operation
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
