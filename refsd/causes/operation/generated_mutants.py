"""Make wrong answers from an operation's declaration alone: its inputs with their axes, its parameters, its kind.

A page lists the known bugs of engines. This module makes other bugs, one at a time, where no listed bug explains an
answer: an input changed or taken for another, an axis permuted, padded or cut, a parameter changed, another
operation in place of this one.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, combinations, permutations

import ml_dtypes
import numpy as np

from refsd.causes.generic.error_places import joined
from refsd.causes.generic.orders import in_order, orders, tiles
from refsd.causes.operation.declared import axes_of, fits, letters, other_values, plain, with_changed
from refsd.causes.operation.memory_layouts import (
    first_of_last,
    last_of_first,
    of_groups,
    of_other_strides,
    of_strides,
    of_tiles,
    of_tokens,
    read_on,
    reread,
    restored,
)
from refsd.golden.cause_kinds import BLOCKS, tails, tails_of
from refsd.golden.mutations import answer, widened
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.errors import BadInput

Named = Iterator[tuple[str, np.ndarray]]

# Change a larger input only as a whole, not axis by axis.
_LARGE = 1 << 20
# These only copy values: do not try them in place of another operation.
_EXPANDS = ("dequantize", "embedding")
# Of an input that hides by -inf.
_MASKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "{} of 1 (keep) and 0 (hide) added to the scores": lambda x: np.where(np.isneginf(x), 0.0, 1.0),
    "{} inverted: what should be kept is hidden": lambda x: np.where(np.isneginf(x), 0.0, -np.inf),
}
# What explains most with the least; tried before all else.
_SIMPLEST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "{} left out: zeros": np.zeros_like,
    "{} left out: ones": np.ones_like,
}
_WHOLE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "{} squared": np.square,
    "{} without its sign": np.abs,
    "{} rounded to whole numbers": np.rint,
    **_MASKS,
}
_ROUNDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "{} rounded to float16": lambda x: x.astype(np.float16),
    "{} rounded to bfloat16": lambda x: x.astype(ml_dtypes.bfloat16),
    "{} rounded to float8_e4m3": lambda x: x.astype(ml_dtypes.float8_e4m3fn),
    "{} rounded to tf32, 10 bits": lambda x: shortened(x, 13, 1 << 12),
    "{} cut off to tf32, 10 bits": lambda x: shortened(x, 13),
    "{} cut off to bfloat16": lambda x: shortened(x, 16),
}


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def shortened(x: np.ndarray, bits: int, more: int = 0) -> np.ndarray:
    return ((_bits(x) + np.uint32(more)) >> bits << bits).view(np.float32)


def generated(op: Operation, inputs: Inputs, params: Params, others: dict[str, Operation]) -> Named:
    """Yield (name, answer) for every bug that the declaration allows: float32, of the right answer's shape.

    params: complete; others: the operations by name, to be tried in place of this one
    """
    right = answer(op, inputs, params)
    for name, make in _all(op, inputs, params, others, right):
        try:
            with np.errstate(all="ignore"):
                y = make()
        except (BadInput, ValueError, IndexError, ZeroDivisionError, OverflowError):
            continue  # the operation rejects this change
        if y is not None and y.shape == right.shape and not np.array_equal(y, right):
            yield name, y


def simplest(op: Operation, inputs: Inputs, params: Params) -> Named:
    """Yield (name, answer) where nothing is computed, or an input is the result, or is zeros or ones.

    Of those that give the same numbers only the first.
    """
    right = answer(op, inputs, params)
    seen = {right.tobytes()}
    values = {name: tensor.values() for name, tensor in inputs.items() if tensor.values().dtype.kind == "f"}
    made = [("nothing is computed: zeros", np.zeros_like(right))]
    made += [(f"{op.name} left out: {n} is the result", x) for n, x in values.items() if x.shape == right.shape]
    cut = "the result is cut off at the smallest and largest number of {}"
    made += [(cut.format(n), right.clip(x.min(), x.max())) for n, x in values.items() if x.ndim == right.ndim]
    with np.errstate(all="ignore"):
        made += [
            (phrase.format(name), with_changed(op, inputs, params, {name: change(x)}))
            for name, x in values.items()
            for phrase, change in _SIMPLEST.items()
        ]
    for phrase, y in made:
        y = np.asarray(y, np.float32)
        if y.tobytes() not in seen:
            seen.add(y.tobytes())
            yield phrase, y


def _all(op, inputs, params, others, right) -> Iterator[tuple[str, Callable[[], np.ndarray | None]]]:
    yield from _parameters(op, inputs, params, right.shape)
    yield from _rounded(op, inputs, params)
    yield from _inputs(op, inputs, params)
    yield from _exchanged_inputs(op, inputs, params)
    values = {name: t.values() for name, t in inputs.items()}
    read = of_other_strides(values)
    yield from ((name, lambda changed=changed: with_changed(op, inputs, params, changed)) for name, changed in read)
    yield from _channels_last(op, inputs, params, right)
    yield from _of_results(op, inputs, params, right)
    yield from _lengths(op, inputs, params)
    yield from _left_out(op, inputs, params, right)
    yield from _other_operations(op, inputs, params, others)


# --- inputs ------------------------------------------------------------------------------------------------------


def _inputs(op, inputs, params):
    for name, tensor in inputs.items():
        x = tensor.values()
        changes = {phrase.format(name): change for phrase, change in _WHOLE.items() if _applies(phrase, x)}
        changes |= dict(chain(of_tokens(name, x), of_groups(name, x, params, letters(op, name, x.ndim))))
        if x.size <= _LARGE:
            changes |= dict(of_strides(name, x)) if x.dtype.kind == "f" else {}
            changes |= dict(_of_axes(name, x, letters(op, name, x.ndim)))
        if f"{name}?" in op.inputs:
            rest = {key: tensor for key, tensor in inputs.items() if key != name}
            yield f"{name} left out", lambda rest=rest: answer(op, rest, params)
        for phrase, change in changes.items():
            yield phrase, lambda name=name, x=x, change=change: with_changed(op, inputs, params, {name: change(x)})


def _rounded(op, inputs, params):
    """Round each input, or all that are no lists, to a smaller type."""
    floats = [name for name, tensor in inputs.items() if tensor.values().dtype.kind == "f"]
    wide = tuple(name for name in floats if len(inputs[name].shape) > 1)
    for names in dict.fromkeys([wide or tuple(floats), *((name,) for name in floats)]) if floats else ():
        for phrase, change in _ROUNDED.items():
            if "float8" not in phrase or names == wide:
                own = {name: change(inputs[name].values()) for name in names}
                yield phrase.format(joined(names, "and")), lambda own=own: with_changed(op, inputs, params, own)


def _applies(phrase: str, x: np.ndarray) -> bool:
    return x.dtype.kind == "f" and (phrase not in _MASKS or bool(np.isneginf(x).any()))


def _of_axes(name: str, x: np.ndarray, axes: list[str]) -> Iterator[tuple[str, Callable]]:
    """Yield changes of the order in which an input is read along its axes."""
    for axis, n in enumerate(x.shape):
        for phrase, order in chain(orders(n), tiles(n)):
            yield f"{name}, axis {axes[axis] or axis}: {phrase}", lambda x, a=axis, o=order: in_order(x, a, o)
    for shape, axis, start, phrase in tails_of(name, x.shape, axes):
        if start:
            kept = np.where(np.arange(shape[axis]) < start, np.arange(shape[axis]), -1)
            yield phrase, lambda x, s=shape, a=axis, o=kept: in_order(x.reshape(s), a, o).reshape(x.shape)
    for one, other in combinations(range(x.ndim), 2):
        if x.shape[one] < 2 or x.shape[other] < 2:
            continue
        which = f"{name}: axes {axes[one] or one} and {axes[other] or other}"
        if x.shape[one] == x.shape[other]:
            yield f"{which} exchanged", lambda x, a=one, b=other: x.swapaxes(a, b)
        yield f"{which} exchanged in memory", lambda x, a=one, b=other: reread(x, a, b)
        yield f"{which} stored in the other order", lambda x, a=one, b=other: restored(x, a, b)
    for words, edge in (("first", 0), ("last", -1)) if axes[2:] == ["H", "W"] else ():
        phrase = f"{name}: neither the {words} row nor the {words} column is read"
        yield phrase, lambda x, at=edge: without_edges(x, at)
    if x.ndim > 3 and x.shape[1] > 1:
        yield f"{name}: axis {axes[1] or 1} is read as if it came last in memory", first_of_last
        yield f"{name}: axis {axes[1] or 1} lies last in memory", last_of_first
    yield from of_tiles(name, x)
    for block in BLOCKS if x.ndim > 1 and x.shape[-2] > 1 else ():
        if x.shape[-1] % block:
            phrase = f"{name}: its rows are sought at a stride of whole {block}s of numbers"
            yield phrase, lambda x, b=block: read_on(x, -(-x.shape[-1] // b) * b, x.shape[-2])


def _exchanged_inputs(op, inputs, params):
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


def without_edges(x: np.ndarray, edge: int) -> np.ndarray:
    """Return pictures [N, C, H, W] with zeros in one row and one column."""
    x = x.copy()
    x[:, :, edge] = x[..., edge] = 0
    return x


def _channels_last(op, inputs, params, right):
    """Read all pictures and filters, and the answer, as if channels came first, where they lie last."""
    names = [name for name, t in inputs.items() if len(t.shape) > 3 and t.shape[1] > 1]
    made = partial(with_changed, op, inputs, params, {name: last_of_first(inputs[name].values()) for name in names})
    if right.ndim > 3 and len(names) > 1:
        words = f"{joined(names, 'and')} lie with channels last in memory"
        yield words, made
        yield f"{words}, as the answer", lambda: first_of_last(made())


def _of_results(op, inputs, params, right):
    """Yield sums that are not cleared."""
    if "bias" in inputs and "weight" in inputs and op.family != "norms":
        bare = with_changed(op, inputs, params, {"bias": 0 * inputs["bias"].values()})
        for axis in range(right.ndim):
            for n in (n for n in (2, 4, 8, right.shape[axis]) if 1 < n <= right.shape[axis]):
                tiles = np.split(bare, range(n, bare.shape[axis], n), axis)
                sums = np.concatenate([tile.cumsum(axis) for tile in tiles], axis)
                phrase = f"sums are not cleared: each of {n} along axis {axis} goes on from the one before"
                yield phrase, lambda sums=sums: sums + (right - bare)


def _lengths(op, inputs, params):
    """Pad with zeros, or cut, an axis that the output does not have, in all inputs that have it."""
    out = re.findall(r"[A-Z]\w*", op.output)
    # Skip an axis that is part of another's length, and operations with integer inputs, which point into an axis.
    parts = [part for shape in op.inputs.values() for part in axes_of(shape) if not re.fullmatch(r"[A-Z]\w*", part)]
    out += re.findall(r"[A-Z]\w*", " ".join(parts))
    if any(tensor.values().dtype.kind in "iu" for tensor in inputs.values()):
        return
    held: dict[str, list[tuple[str, int]]] = {}
    for name, tensor in inputs.items():
        for axis, letter in enumerate(letters(op, name, len(tensor.shape))):
            if letter and letter not in out:
                held.setdefault(letter, []).append((name, axis))
    for letter, where in held.items():
        n = max(inputs[name].shape[axis] for name, axis in where)
        where = [(name, axis) for name, axis in where if inputs[name].shape[axis] == n]
        which = f"axis {letter} of {' and '.join(name for name, _ in where)}"
        for block in BLOCKS:
            if n % block:
                phrase = f"{which} padded with zeros to a multiple of {block}, which are read"
                yield phrase, _resized(op, inputs, params, where, -n % block)
        of_rows = all(axis == len(inputs[name].shape) - 1 for name, axis in where)
        for width in _wider(n) if of_rows or {axis for _, axis in where} == {1} else ():
            phrase = f"{which} is read on to {width} numbers, into what lies behind it"
            yield phrase, _resized(op, inputs, params, where, width - n, behind=True)
        cut = {k: f"the last {k} of {which} not read" for k in (1, 2, 3, 32) if k < n}
        cut |= {n - start: f"{words}, not read" for start, words in tails(n, f"the {which}") if start}
        for less, phrase in cut.items():
            yield phrase, _resized(op, inputs, params, where, -less)


def _wider(n: int) -> list[int]:
    """Return the lengths of whole blocks, and the next power of two."""
    return sorted({-(-n // block) * block for block in (*BLOCKS, 1 << (n - 1).bit_length())} - {n})


def _resized(op, inputs, params, where, by: int, behind=False):
    """behind: an axis goes on into what lies behind it, not into zeros; an attention's scale is the right one's"""
    if behind and params.get("scale", 1) is None:
        params = {**params, "scale": inputs[where[0][0]].shape[-1] ** -0.5}

    def make():
        changed = {}
        for name, axis in where:
            x = inputs[name].values()
            if by < 0:
                changed[name] = x.take(np.arange(x.shape[axis] + by), axis)
            elif behind:
                changed[name] = widened(x, by, axis)
            else:
                changed[name] = np.pad(x, [(0, by if a == axis else 0) for a in range(x.ndim)])
        return with_changed(op, inputs, params, changed)

    return make


# --- parameters --------------------------------------------------------------------------------------------------


# What the numbers of a padding are called, the last ones.
_SIDES = ("front", "back", "top", "bottom", "left", "right")


def _parameters(op, inputs, params, shape):
    own = params.get("padding", ()) if op.name != "pad" else ()
    sides = _SIDES[-len(own) :] if isinstance(own, tuple | list) and len(own) in (4, 6) else ()
    for (to, side), (of, other) in permutations(enumerate(sides), 2):
        if own[to] != own[of] and (to % 2 == of % 2 or to // 2 == of // 2):
            changed = {**params, "padding": (*own[:to], own[of], *own[to + 1 :])}
            phrase = f"the padding at the {other} is taken for that at the {side}"
            yield phrase, lambda p=changed: _fitted(op, inputs, p, shape)
    for name, value in params.items():
        for other in dict.fromkeys(other_values(value)):
            if other != value and fits(name, other, value, inputs):
                phrase, changed = f"{name} is {plain(other)}, not {plain(value)}", {**params, name: other}
                yield phrase, lambda p=changed: _fitted(op, inputs, p, shape)


def _fitted(op, inputs, params, shape) -> np.ndarray | None:
    """Return the answer with other parameters, in the right answer's shape.

    The engine has allocated that shape: a larger answer is cut off; for a smaller one the engine reads zeros beyond
    the picture.
    """
    y = answer(op, inputs, params)
    if y.ndim != len(shape):
        return None
    if any(a < b for a, b in zip(y.shape, shape, strict=True)):
        x = inputs["x"].values() if "x" in inputs else None
        if x is None or x.ndim != 4:
            return None
        room = [(0, 0), (0, 0), (0, x.shape[2] + 8), (0, x.shape[3] + 8)]
        y = with_changed(op, inputs, params, {"x": np.pad(x, room)})
    return y[tuple(slice(n) for n in shape)]


# --- the operation -----------------------------------------------------------------------------------------------


def _left_out(op, inputs, params, right):
    for name, tensor in inputs.items():
        x = tensor.values()
        if x.shape != right.shape and x.size == right.size and x.dtype.kind == "f":
            yield f"nothing is moved: {name} as it lies in memory", lambda x=x: x.reshape(right.shape)
        if x.shape == right.shape and x.dtype.kind == "f":
            yield f"{op.name} done twice", lambda name=name: with_changed(op, inputs, params, {name: right})


def _other_operations(op, inputs, params, others):
    """Yield the answers of operations that take the same inputs, or some of them, in the same shapes."""
    for other in others.values():
        declared = {name.rstrip("?"): shape for name, shape in op.inputs.items()}
        shapes = {name.rstrip("?"): shape for name, shape in other.inputs.items()}
        needed = {name for name in other.inputs if not name.endswith("?")}
        alike = all(declared.get(name) == shape for name, shape in shapes.items() if name in inputs)
        if other.name == op.name or other.name in _EXPANDS or not needed <= inputs.keys() or not alike:
            continue
        given = {name: tensor for name, tensor in inputs.items() if name in shapes}
        shared = {name: value for name, value in params.items() if name in other.params}
        phrase = f"{other.name} in place of {op.name}"
        yield phrase, lambda o=other, given=given, own=shared: answer(o, given, o.complete(given, own))
