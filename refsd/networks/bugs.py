"""Known bugs of a network, each a change to the reference from outside: the models' code has no hooks for them."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from refsd import module
from refsd.golden.judge import Mutant
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput

Inputs = Mapping[str, np.ndarray]
# Weight name -> name of the weight used instead; name and values -> values used instead. None: unchanged.
Renamed = Callable[[str], str | None]
Revalued = Callable[[str, np.ndarray], np.ndarray | None]


class Change(NamedTuple):
    """A bug, as a change to the reference.

    arithmetic: the operations, some of them wrong
    inputs:     inputs -> wrong inputs; None: the bug makes no difference
    rename:     swaps one weight for another
    revalue:    changes a weight's values
    outputs:    outputs -> wrong outputs; None: the bug makes no difference
    params:     the component's parameters -> wrong ones
    replaced:   (model's module or a class, function's name, replacement): patched in while the model runs
    """

    arithmetic: type[Arithmetic] = Arithmetic
    inputs: Callable[[Inputs], Inputs | None] = lambda inputs: inputs
    rename: Renamed | None = None
    revalue: Revalued | None = None
    outputs: Callable[[Inputs], Inputs | None] = lambda outputs: outputs
    params: Callable[[dict[str, Any]], dict[str, Any]] = lambda params: params
    replaced: tuple[tuple[ModuleType | type, str, Any], ...] = ()

    @contextlib.contextmanager
    def in_models(self) -> Iterator[None]:
        """Patch the replaced functions into the models' modules until the context ends."""
        right = [(page, name, getattr(page, name)) for page, name, _ in self.replaced]
        try:
            for page, name, wrong in self.replaced:
                setattr(page, name, wrong)
            yield
        finally:
            for page, name, function in right:
                setattr(page, name, function)

    def within(self, prefix: str) -> "Change":
        """Return the change restricted to weights whose names start with `prefix`."""
        rename, revalue = self.rename, self.revalue
        return self._replace(
            rename=rename and (lambda name: rename(name) if name.startswith(prefix) else None),
            revalue=revalue and (lambda name, values: revalue(name, values) if name.startswith(prefix) else None),
        )

    @property
    def of_weights(self) -> bool:
        return self.rename is not None or self.revalue is not None


def replacing(page: ModuleType, *rows: tuple[str, str, Callable[..., Any]]) -> tuple[Mutant[Change], ...]:
    """Return bugs that each replace one function of a page. rows: (bug, function's name, replacement)"""
    return tuple(Mutant(name, Change(replaced=((page, function, wrong),))) for name, function, wrong in rows)


def with_arguments(function: Callable[..., Any], **changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function that gets other arguments. changes: parameter -> (argument -> wrong argument)"""
    signature = inspect.signature(function)

    def wrong(*arguments, **named):
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        for name, change in changes.items():
            bound.arguments[name] = change(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return wrong


def with_result(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function whose result is changed."""
    return lambda *arguments, **named: change(function(*arguments, **named))


def rows_and_columns_swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of positions with the second and third of their axes swapped. [..., 3] or [..., 4]"""
    return with_result(function, lambda ids: ids[..., [0, 2, 1, *range(3, ids.shape[-1])]])


def called_again(page: ModuleType, first: str, second: str) -> Change:
    """Return a bug that calls one function of a page in another's place, with the weights of its last call."""
    called, right = [], getattr(page, first)

    def noted(m, x, *rest):
        called[:] = [(m, rest)]
        return right(m, x, *rest)

    def again(m, x, *_):
        own, rest = called[0]
        return right(own, x, *rest)

    return Change(replaced=((page, first, noted), (page, second, again)))


def changing(argument: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Return a bug that changes one input; it makes no difference where that input is missing."""

    def changed(inputs: Inputs) -> Inputs | None:
        return {**inputs, argument: change(inputs[argument])} if argument in inputs else None

    return Change(inputs=changed)


def dropping(*arguments: str) -> Change:
    """Return a bug that does not read some inputs."""

    def dropped(inputs: Inputs) -> Inputs | None:
        left = {name: value for name, value in inputs.items() if name not in arguments}
        return left if len(left) < len(inputs) else None

    return Change(inputs=dropped)


def exchanging(*pairs: tuple[str, str]) -> Change:
    """Return a bug that reads one weight for another. pairs: parts of the two names"""

    def renamed(name: str) -> str | None:
        for one, other in pairs:
            if one in name:
                return name.replace(one, other)
            if other in name:
                return name.replace(other, one)
        return None

    return Change(rename=renamed)


_RUN = module.run_block
_Run = Callable[..., Any]  # as module.run_block


def of_blocks(run: Callable[[Change], Any]) -> Iterator[tuple[str, Mutant[Change]]]:
    """Yield (block, bug) of the numbered blocks that a run enters, the last first. run: runs it with a change"""
    met: dict[str, None] = {}

    def noted(fn, m, args, kwargs):
        met.setdefault(m.prefix[:-1])
        return _RUN(fn, m, args, kwargs)

    run(Change(replaced=((module, "run_block", noted),)))
    for name in reversed([name for name in met if name.rpartition(".")[2].isdigit()]):
        stack, _, number = name.rpartition(".")
        after = f"{stack}.{int(number) + 1}"
        yield name, Mutant(f"block {number} of {stack} is skipped", _running({name: _skipped}))
        for seen in (1, 0):  # the time whose tensors the engine gives
            twice = {name: functools.partial(_twice, seen)}
            yield name, Mutant(f"block {number} of {stack} runs twice", _running(twice))
        turned = {one: functools.partial(_at, f"{other}.") for one, other in ((name, after), (after, name))}
        words = f"blocks {number} and {int(number) + 1} of {stack} run in each other's place"
        yield name, Mutant(words, _running(turned))


def all_skipped(blocks: Collection[str]) -> Mutant[Change]:
    """Return the bug that skips all of these blocks."""
    return Mutant(f"blocks {', '.join(sorted(blocks))} are skipped", _running(dict.fromkeys(blocks, _skipped)))


def _running(wrong: Mapping[str, _Run]) -> Change:
    def run(fn, m, args, kwargs):
        return wrong.get(m.prefix[:-1], _RUN)(fn, m, args, kwargs)

    return Change(replaced=((module, "run_block", run),))


def _at(prefix: str, fn, m, args, kwargs, taps=True):
    other = copy.copy(m)
    other.prefix, other.taps = prefix, m.taps if taps else None
    return _RUN(fn, other, args, kwargs)


def _skipped(fn, m, args, kwargs):
    y = _at(m.prefix, fn, m, args, kwargs, taps=False)
    before = [args[i] for i in _states(args, y)]
    return tuple(before) if isinstance(y, tuple) else before[0]


def _twice(seen: int, fn, m, args, kwargs):
    for time in (0, 1):
        y = _at(m.prefix, fn, m, args, kwargs, taps=time == seen)
        parts = dict(zip(_states(args, y), y if isinstance(y, tuple) else (y,), strict=True))
        args = tuple(parts.get(i, x) for i, x in enumerate(args))
    return y


def _states(args, y) -> list[int]:
    """Return which argument each part of a block's result follows: the first left that has its shape."""
    at: list[int] = []
    for part in y if isinstance(y, tuple) else (y,):
        alike = [i for i, x in enumerate(args) if i not in at and getattr(x, "shape", None) == np.shape(part)]
        if not alike:
            raise BadInput("a block whose result has another shape than its input is neither skipped nor repeated")
        at.append(alike[0])
    return at
