"""Check the inputs and params of a component; raise BadInput, in one line, if it cannot take them."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from refsd.files.stored import shown
from refsd.models.clip import ACTIVATIONS
from refsd.module import Module
from refsd.networks.component import IDS, MASK, Argument, Component
from refsd.networks.fits import Fit
from refsd.numerics.errors import BadInput

_ANY_SIGN = ("strength", "control_strength", "ip_scale")  # numbers that may be 0 or below


def check(
    name: str,
    component: Component,
    m: Module,
    inputs: Mapping[str, np.ndarray],
    params: Mapping[str, Any],
    source: str,
) -> None:
    """Raise BadInput, in one line, unless `forward` accepts these inputs and params."""
    fits = component.fits(m)
    _check_names(name, component, inputs, fits, source)
    _check_params(name, component, {**component.params, **params}, fits)
    sizes: dict[str, int] = {}
    for argument, wanted in component.arguments.items():
        if argument not in inputs:
            continue
        x = np.asarray(inputs[argument])
        at = f"{source}: tensor {argument}"
        letters = wanted.shape.split()
        if len(letters) != x.ndim or 0 in x.shape:
            raise BadInput(f"{at} has shape {list(x.shape)}, expected {_bracketed(wanted)}: reshape it")
        for letter, size in zip(letters, x.shape, strict=True):
            mismatch = f"{at} has shape {list(x.shape)}, expected {_bracketed(wanted)}"
            _check_size(mismatch, letter, size, sizes, fits)
        _check_values(at, x, wanted.kind, fits)


def _check_names(name: str, component: Component, inputs, fits: Mapping[str, Fit], source: str) -> None:
    what = ", ".join(
        f"{argument} {_bracketed(wanted)}{' (optional)' if wanted.optional else ''}"
        for argument, wanted in component.arguments.items()
    )
    needed = {argument for argument, wanted in component.arguments.items() if not wanted.optional}
    if not needed <= inputs.keys() <= component.arguments.keys():
        found = ", ".join(shown(name).strip('"') for name in sorted(inputs)[:10]) or "nothing"
        raise BadInput(f"{source}: {name} takes {what}; found {found}: name the tensors so")
    for argument, wanted in component.arguments.items():
        if wanted.optional and argument in fits and not fits[argument].holds(int(argument in inputs)):
            raise BadInput(f"{source}: tensor {argument} {_bracketed(wanted)} is {fits[argument].says}")


def _check_params(name: str, component: Component, params: Mapping[str, Any], fits: Mapping[str, Fit]) -> None:
    for param, value in params.items():
        if param not in component.params:
            has = f"it has {', '.join(component.params)}" if component.params else "it has none"
            raise BadInput(f"{name} has no param {param}; {has}")
        default, fit = component.params[param], fits.get(param)
        if fit is not None and fit.alone:
            if not fit.holds(value):
                raise BadInput(f"{name}: param {param} is {str(value)[:40]}, the model takes {fit.says}")
            continue
        listed = type(value) is list and (type(default) is list or (fit is not None and fit.lists))
        if type(value) is not type(default) and not listed:
            raise BadInput(f"{name}: param {param} is {str(value)[:40]!r}, expected something like {default!r}")
        numbers, lowest = value if listed else [value] if type(value) is int else [], int(type(default) is not list)
        if not all(type(n) is int and n >= lowest for n in numbers) or (numbers and fit and not fit.holds(value)):
            says = fit.says if fit else f"at least {lowest}"
            raise BadInput(f"{name}: param {param} is {str(value)[:40]}, the model takes {says}")
        if type(value) is float and not np.isfinite(value):
            raise BadInput(f"{name}: param {param} is {value}, expected a finite number")
        if type(value) is float and value <= 0 and param not in _ANY_SIGN:
            raise BadInput(f"{name}: param {param} is {value}, expected a number above 0")
    if params.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise BadInput(
            f"{name}: param hidden_act is {params['hidden_act'][:40]!r}; expected {' or '.join(ACTIVATIONS)}"
        )


def _check_size(at: str, letter: str, size: int, sizes: dict[str, int], fits: Mapping[str, Fit]) -> None:
    """Check one dimension of an input against the sizes so far and the weights. letter: "H", "J+L", "8H" or "3"."""
    factor, name = re.fullmatch(r"(\d*)(.*)", letter).groups()  # type: ignore[union-attr]
    if "+" in letter:
        known = sum(sizes[part] for part in letter.split("+"))
    elif not name:
        known = int(factor)
    elif factor:
        known = int(factor) * sizes[name]
    else:
        known = sizes.setdefault(letter, size)
    if size != known:
        there = f"and {known} in another tensor" if name else f"and must be {known}"
        raise BadInput(f"{at}: {letter} is {size} here {there}")
    if letter in fits and not fits[letter].holds(size):
        raise BadInput(f"{at}: {letter} is {size}, the model takes {fits[letter].says}")


def _check_values(at: str, x: np.ndarray, kind: str, fits: Mapping[str, Fit]) -> None:
    if x.dtype.kind == "b" and kind is not MASK:
        raise BadInput(f"{at} is bool, expected {kind.split(',')[0]}: only a mask may be bool")
    integers = x.dtype.kind in "iu"
    if kind is IDS:
        if not integers:
            raise BadInput(f"{at} is {x.dtype}, expected int64 or int32: store token ids as integers")
        if x.min() < 0 or x.max() >= fits["V"].n:
            raise BadInput(f"{at} holds ids {x.min()}..{x.max()}, the model knows 0..{fits['V'].n - 1}")
    elif kind is MASK:
        if not np.isin(x, (0, 1)).all():
            raise BadInput(f"{at} holds {x.min()}..{x.max()}, expected 0 and 1 only")
    elif not integers and not np.isfinite(np.asarray(x, np.float64)).all():
        raise BadInput(f"{at} holds NaN or infinity: expected finite numbers")


def _bracketed(argument: Argument) -> str:
    return f"[{argument.shape.replace(' ', ', ')}]"
