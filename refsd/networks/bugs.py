"""Known bugs of a network, each a change to the reference from outside: the models' code has no hooks for them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.judge import Mutant
from refsd.numerics.arithmetic import Arithmetic

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
    replaced:   (model's module, function's name, replacement): patched in while the model runs
    """

    arithmetic: type[Arithmetic] = Arithmetic
    inputs: Callable[[Inputs], Inputs | None] = lambda inputs: inputs
    rename: Renamed | None = None
    revalue: Revalued | None = None
    outputs: Callable[[Inputs], Inputs | None] = lambda outputs: outputs
    params: Callable[[dict[str, Any]], dict[str, Any]] = lambda params: params
    replaced: tuple[tuple[ModuleType, str, Any], ...] = ()

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
