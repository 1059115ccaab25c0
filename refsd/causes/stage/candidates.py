"""Candidates for a wrong input or setting, made from the stage's own declaration.

Each setting is replaced: by another case's value, its default, or a common mistake with a number or text. Each
input is left out, exchanged with another input, or taken from another item.
"""

import re
from collections.abc import Callable, Iterator
from itertools import combinations, permutations
from typing import Any
from unicodedata import combining, normalize

import ml_dtypes
import numpy as np

from refsd.causes.generic.error_places import joined
from refsd.causes.generic.orders import in_order, orders
from refsd.causes.generic.relations import ELEMENTWISE
from refsd.causes.operation.memory_layouts import reread
from refsd.golden.judge import Mutant
from refsd.golden.operation import REQUIRED
from refsd.stages.stage import Change, Params, Stage, Tensors

_NUMBERS: dict[str, Callable[[float], float]] = {
    "squared": lambda v: v * v,
    "its root": lambda v: v**0.5,
    "its reciprocal": lambda v: 1 / v,
    "of the other sign": lambda v: -v,
    "doubled": lambda v: 2 * v,
    "halved": lambda v: v / 2,
    "taken four times": lambda v: 4 * v,
    "a quarter of it": lambda v: v / 4,
    "1 less it": lambda v: 1 - v,
    "one more": lambda v: v + 1,
    "one less": lambda v: v - 1,
    "left out": lambda v: 0,
    "as if 1": lambda v: 1,
    "rounded to bfloat16": lambda v: float(ml_dtypes.bfloat16(v)),
}
_TEXTS: dict[str, Callable[[str], str]] = {
    "in lower case": str.lower,
    "without blanks at its ends": str.strip,
    "with all white space as single blanks": lambda text: " ".join(text.split()),
    "with its line ends as blanks": lambda text: re.sub(r"[\r\n]+", " ", text),
    "without its runs of white space": lambda text: re.sub(r"\s{2,}", "", text),
    "without its white space": lambda text: re.sub(r"\s+", "", text),
    "without its line ends": lambda text: re.sub(r"[\r\n]+", "", text),
    "in composed characters (NFC)": lambda text: normalize("NFC", text),
    "in decomposed characters (NFD)": lambda text: normalize("NFD", text),
    "without accents": lambda text: "".join(c for c in normalize("NFD", text) if not combining(c)),
    "in ASCII alone": lambda text: text.encode("ascii", "ignore").decode(),
    "with its UTF-8 bytes read as Latin-1": lambda text: text.encode().decode("latin-1"),
    "without its emoji": lambda text: "".join(c for c in text if ord(c) < 0x10000),
    "without its brackets": lambda text: re.sub(r"[()\[\]]", "", text),
    "without its weights": lambda text: re.sub(r":\s*[\d.]+\s*(?=\))", "", text),
    "without its backslashes": lambda text: text.replace("\\", ""),
    "with its backslashes kept, those that escape too": lambda text: re.sub(r"\\([()\[\]])", r"\\\\\\\1", text),
    "with its line ends as an unknown character": lambda text: re.sub(r"\r?\n", "\uffff", text),
    "with its line ends as an unknown character and a blank": lambda text: re.sub(r"\r?\n", "\uffff ", text),
    "left out": lambda text: "",
}


# A longer text, in characters, is not the name of a choice.
_SHORT = 40
# Numbers of a list, at the most, that are solved for one by one.
_FEW = 4


def settings(stage: Stage, params: Params) -> Iterator[Mutant[Change]]:
    """Yield candidates that replace one parameter by another value."""
    for name, own in params.items():
        for phrase, other in _others(stage, name, own):
            yield Mutant(phrase, Change(params=_set(name, other)))


def numbers(params: Params) -> Iterator[tuple[str, float, Callable[[float], Callable[[Params], Params]]]]:
    """Yield the numeric parameters that can be solved for: name, value, and value -> change of the parameters.

    An integer is solved for as a real number, then rounded.
    """
    for name, own in params.items():
        if isinstance(own, int | float) and not isinstance(own, bool):
            yield name, own, lambda v, name=name: _set(name, v)
        elif isinstance(own, list) and len(own) <= _FEW and all(isinstance(v, float) for v in own):
            alike = {value: [i for i, v in enumerate(own) if v == value] for value in own}
            for at in [*alike.values(), *([i] for each in alike.values() if each[1:] for i in each)]:
                yield f"{name}{at}", own[at[0]], lambda v, name=name, at=at: _set_at(name, at, v)
        elif isinstance(own, dict):
            for key, value in own.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    change = lambda v, name=name, key=key: lambda p: {**p, name: {**p[name], key: v}}
                    yield str(key), float(value), change


def exchanged(tensors: Tensors) -> Iterator[Mutant[Change]]:
    """Yield candidates where one input is left out, moved along an axis, or exchanged with another input.

    Of changes that give the same numbers the first is the simplest, and the only one.
    """
    for name, y in tensors.items():
        seen = {y.tobytes()}
        for phrase, move in _moves(y):
            with np.errstate(all="ignore"):
                moved = move(y).astype(y.dtype).tobytes()
            if moved in seen:
                continue
            seen.add(moved)
            yield Mutant(f"{name} {phrase}", Change(tensors=_moved(name, move)))
        for other, z in tensors.items():
            if other != name and z.shape == y.shape and z.dtype == y.dtype:
                yield Mutant(f"{other} in place of {name}", Change(tensors=_taken(**{name: other})))
                if other > name:
                    yield Mutant(
                        f"{name} and {other} swapped", Change(tensors=_taken(**{name: other, other: name}))
                    )
    matrices = [name for name, y in tensors.items() if y.ndim == 2 and min(y.shape) > 1 and y.dtype.kind == "f"]
    for some in (*combinations(matrices, 1), *combinations(matrices, 2)):
        phrase = f"{joined(some, 'and')} read in the other order of memory, as the transposed"
        yield Mutant(
            phrase, Change(tensors=lambda t, of=some: {**t, **{name: reread(t[name], 0, 1) for name in of}})
        )


def scaled(name: str) -> Callable[[float], Callable[[Tensors], Tensors]]:
    return lambda factor: lambda tensors: {**tensors, name: tensors[name] * tensors[name].dtype.type(factor)}


def _set(name: str, value: Any) -> Callable[[Params], Params]:
    return lambda params: {**params, name: value}


def _set_at(name: str, at: list[int], value: float) -> Callable[[Params], Params]:
    return lambda params: {**params, name: [value if i in at else v for i, v in enumerate(params[name])]}


def _moved(name: str, move: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: move(tensors[name]).astype(tensors[name].dtype)}


def _taken(**read: str) -> Callable[[Tensors], Tensors]:
    """read: name -> the tensor that stands in its place"""
    return lambda tensors: {**tensors, **{name: tensors[other] for name, other in read.items()}}


def _others(stage: Stage, name: str, own: Any) -> Iterator[tuple[str, Any]]:
    seen = [own]

    def new(value: Any) -> bool:
        if any(value is one or (type(value) is type(one) and value == one) for one in seen):
            return False
        seen.append(value)
        return True

    if isinstance(own, bool):
        yield (f"{name} is taken for {not own}", not own)
        return
    if isinstance(own, int | float):
        for phrase, change in _NUMBERS.items():
            try:
                value = change(own)
            except (ValueError, ZeroDivisionError, OverflowError):
                continue
            if isinstance(value, complex) or (isinstance(own, int) and value != int(value)):
                continue
            value = int(value) if isinstance(own, int) else float(value)
            if new(value):
                yield f"{name} {phrase}: {value:.6g} for {own:.6g}", value
    if isinstance(own, str):
        for phrase, change in _TEXTS.items() if " " in own or not own.isidentifier() else ():
            if new(change(own)):
                yield f"the {name} {phrase}", change(own)
    if isinstance(own, list) and new(own[::-1]):
        yield f"{name} in reverse order", own[::-1]
    if isinstance(own, dict):
        for key in own:
            yield f"{name}: {key} left out", {k: v for k, v in own.items() if k != key}
    if isinstance(own, str | int | float | list | None) and not (isinstance(own, str) and " " in own):
        default = stage.params[name]
        values = [] if default is REQUIRED else [default]
        values += [case.params[name] for case in stage.cases if name in case.params]
        for value in values:
            short = len(value) <= _SHORT if isinstance(value, str) else isinstance(value, int | float | list | None)
            if short and new(value):
                yield f"{name} is {value} for {own}", value


# Types of stored numbers, and those that their bytes are taken for.
_READ = tuple(permutations(("float32", "float16", "bfloat16"), 2))


def _reread(x: np.ndarray, of: str, to: str) -> np.ndarray:
    """Read the bytes of a type as numbers of another; what lies behind the end is zero."""
    data = np.ascontiguousarray(x.astype(np.dtype(of))).tobytes().ljust(4 * x.size, b"\0")
    read = np.frombuffer(data, np.dtype(to))[: x.size].reshape(x.shape).astype(np.float32)
    return np.where(np.isfinite(read), read, 0).astype(x.dtype)


def _moves(y: np.ndarray) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    yield "left out: zeros", np.zeros_like
    if y.dtype.kind in "iu":
        yield "all ones", np.ones_like
        yield "inverted: 0 for 1", lambda x: 1 - np.minimum(x, 1)
    else:
        yield "of the other sign", np.negative
        yield "all ones", np.ones_like
        yield from ELEMENTWISE.items()
        for of, to in _READ:
            yield f"with {of}'s bytes read as {to}'s", lambda x, of=of, to=to: _reread(x, of, to)
    if y.ndim > 1 and y.shape[0] > 1:
        yield "of the first item for all items", lambda x: np.broadcast_to(x[:1], x.shape).copy()
        yield "of the last item for all items", lambda x: np.broadcast_to(x[-1:], x.shape).copy()
        yield "of the next item", lambda x: np.roll(x, -1, axis=0)
    for axis, n in enumerate(y.shape):
        for phrase, order in orders(n):
            yield f"in another order along axis {axis}: {phrase}", lambda x, a=axis, o=order: in_order(x, a, o)
        for other in range(axis + 1, y.ndim):
            if y.shape[axis] == y.shape[other] > 1:
                yield f"with axes {axis} and {other} exchanged", lambda x, a=axis, b=other: np.swapaxes(x, a, b)
