"""Between two taps: operations left out or exchanged, parts of an earlier tensor taken otherwise."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from refsd.causes.model.observed import Call
from refsd.networks.bugs import Change
from refsd.networks.part_orders import PARTS, alike, apart, part_orders, roles
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64

# Operations that take parts of a modulation.
MODULATED = ("modulate", "adaptive_layer_norm")
# What a known bug ends in if it takes tensors of other sizes than those here.
UNFIT = ValueError, IndexError, TypeError, ZeroDivisionError


Named = Iterator[tuple[str, np.ndarray]]
# Index of an operation, its call; of one between two taps, with another result of it -> the tap.
Calls = Sequence[tuple[int, Call]]
Moved = Callable[[int, np.ndarray], np.ndarray | None]


def left_out(calls: Calls, moved: Moved) -> Named:
    """Yield (bug, tap) where one of the operations between two taps is left out. calls: without the last"""
    for at, call in calls:
        size = max(y.values().size for y in call.inputs.values())
        for name, y in call.inputs.items():
            if name not in ("weight", "bias", "ids") and y.values().size == size:
                with contextlib.suppress(*UNFIT):
                    if (tap := moved(at, y.values())) is not None:
                        yield f"{call.op} left out: {name} is the result", tap


def exchanged(calls: Calls, moved: Moved) -> Named:
    """Yield (bug, tap) where an operation runs behind the one that reads its result. calls: the last first"""
    pairs = itertools.combinations([(at, call) for at, call in calls if "x" in call.inputs], 2)
    for (behind, other), (_, call) in pairs:
        with contextlib.suppress(*UNFIT):  # an operation that changes the width
            if alike(call.answer(), other.inputs["x"].values()):
                tap = moved(behind, call.answer(other.answer(call.inputs["x"].values())))
                if tap is not None:
                    yield f"{call.op} comes behind {other.op}, not before it", tap


def parts_otherwise(
    run: Callable[..., np.ndarray | None], calls: Calls, tensors: Mapping[str, np.ndarray]
) -> Named:
    """Yield (bug, tap) where parts of an earlier tensor, as of a modulation or a qkv, are taken otherwise.

    run:     as Place has it
    tensors: earlier ones by name
    """

    def made(name: str, y: np.ndarray) -> np.ndarray | None:
        return run(Arithmetic(FLOAT64), Change(), {name: np.ascontiguousarray(y)})

    right = run(Arithmetic(FLOAT64), Change())
    tensors = {name: y for name, y in tensors.items() if y.dtype.kind == "f" and y.ndim > 1}
    taken = [call.inputs for _, call in calls if call.op in MODULATED]
    taken = [{name: of[name].values() for name in ("shift", "scale")} for of in taken]
    for name, y in tensors.items():
        read = made(name, 0 * y) if any(y.shape[-1] % n == 0 for n in PARTS) else right
        if read is None or right is None or read.shape != right.shape or np.array_equal(read, right):
            continue
        known = next(filter(None, (roles(y, **of) for of in taken)), None)
        for words, order in part_orders(y.shape[-1], known):
            if (wrong := made(name, y[..., order])) is not None:
                yield words.format(name), wrong
        for other in (one for one in tensors if known and one != name and tensors[one].shape == y.shape):
            for instead in ({name: tensors[other], other: y}, {name: tensors[other]}):
                if (wrong := run(Arithmetic(FLOAT64), Change(), instead)) is not None:
                    yield f"modulated by {' instead of '.join(apart(other, name))}", wrong
