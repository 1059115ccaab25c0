"""Exchange inputs, or parts of them, and the axes along which an operation runs."""

import re
from functools import partial
from itertools import combinations

import numpy as np

from refsd.golden.mutations import answer
from refsd.golden.operation import Operation
from refsd.numerics.errors import BadInput
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


def exchanged_inputs(op, inputs, params):
    for one, other in combinations(inputs, 2):
        a, b = inputs[one], inputs[other]
        if a.shape != b.shape or a.type != b.type:
            continue
        for phrase, changed in (
            (f"{one} and {other} swapped", {one: b, other: a}),
            (f"{other} read for {one}", {one: b}),
            (f"{one} read for {other}", {other: a}),
        ):
            yield phrase, lambda changed=changed: answer(op, {**inputs, **changed}, params)


def along_others(op, inputs, params, right):
    """Exchange two axes: heads are taken for tokens. What has one alone is read from its beginning, or repeated."""
    axes = letters(op, "", right.ndim)
    for one, other in combinations([axis for axis, n in zip(axes, right.shape, strict=True) if axis and n > 1], 2):
        places = axes.index(one), axes.index(other)
        make = partial(_exchanged_axes, op, inputs, params, right.shape, {one: places[0], other: places[1]})
        phrase = f"{op.name} runs along axis {other} where it should along {one}: both are exchanged"
        yield phrase, lambda make=make, places=places: make().swapaxes(*places)


def _exchanged_axes(op, inputs, params, shape, exchanged: dict[str, int]) -> np.ndarray:
    changed, sizes = {}, {}
    for name, tensor in inputs.items():
        x, own, exact = tensor.values(), letters(op, name, len(tensor.shape)), op.inputs.get(name, "")[:1] == "["
        there = [own.index(letter) for letter in exchanged if letter in own]
        there = [*exchanged.values()] if exact and x.ndim == len(shape) else there
        for axis in there if len(there) == 1 else ():
            (n,) = (shape[at] for letter, at in exchanged.items() if letter != own[axis])
            x = x.take(np.arange(n) % x.shape[axis], axis)
        changed[name] = x.swapaxes(*there) if len(there) == 2 else x
        for letter, n in zip(own, changed[name].shape, strict=True):
            same = sizes.setdefault(letter, n) == n if letter else len(there) < 2
            if not same and (exact or n > 1):
                raise BadInput(f"{op.name}: {name} {x.shape}")  # a kernel takes shapes as they are
    if not op.fits({name: x.shape for name, x in changed.items()}, params):
        raise BadInput(f"{op.name}: other shapes")
    return with_changed(op, inputs, params, changed)
