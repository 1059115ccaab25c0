"""Simpler cases of the same operation: fewer inputs, plainer types and parameters, smaller sizes, fewer axes."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from refsd.golden import dimensions
from refsd.golden.case import Case
from refsd.golden.dimensions import Sizes
from refsd.golden.operation import REQUIRED, Operation
from refsd.golden.operations import OPERATIONS
from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.shrinking.cropping import with_inputs

# Sizes that are tried first: vectors, blocks, and what is one off.
_LADDER = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 128, 129, 256)
# How many ways are tried to make a size fit its neighbours.
_REPAIRS = 4


def sizes_of(case: Case) -> Sizes:
    """The sizes of a case of an operation. Raises BadInput where its shapes are not as declared."""
    op = OPERATIONS[case.op]
    return dimensions.sizes_of(op, _shapes(case), _complete(op, case, case.params))


def with_sizes(case: Case, sizes: Sizes, params: Mapping[str, Any] | None = None) -> Case:
    """The case in other sizes, and with other parameters. Raises BadInput where they do not go together."""
    op = OPERATIONS[case.op]
    params = case.params if params is None else params
    full = _complete(op, case, params)
    shapes = dimensions.with_sizes(op, _shapes(case), full, sizes)
    dimensions.check(op, shapes, full)
    inputs = {name: _resized(op, name, case.inputs[name], shape, sizes) for name, shape in shapes.items()}
    return with_inputs(case, inputs, params)


def _resized(op: Operation, name: str, recipe: Recipe, shape: tuple[int, ...], sizes: Sizes) -> Recipe:
    limit = dimensions.limit_of(op, name, sizes)
    return replace(recipe, shape=shape, n=recipe.n if limit is None else limit)


def _shapes(case: Case) -> dict[str, tuple[int, ...]]:
    return {name: tuple(recipe.shape) for name, recipe in case.inputs.items()}


def _complete(op: Operation, case: Case, params: Mapping[str, Any]) -> dict[str, Any]:
    full = {**op.params, **params}
    missing = [name for name, value in full.items() if value is REQUIRED]
    if missing or case.inputs.keys() - {name.rstrip("?") for name in op.inputs}:
        raise BadInput(f"{case.name}: no case of {op.name}")
    return full


def without_inputs(case: Case) -> Iterator[Case]:
    """An input left out that may be absent."""
    for name in OPERATIONS[case.op].inputs:
        if name.endswith("?") and name[:-1] in case.inputs:
            yield with_inputs(case, {k: recipe for k, recipe in case.inputs.items() if k != name[:-1]})


def in_float32(case: Case) -> Iterator[Case]:
    """An input of another floating type, or of blocks, as float32."""
    for name, recipe in case.inputs.items():
        if recipe.type != "f32" and not recipe.type.startswith("i"):
            yield with_inputs(case, {**case.inputs, name: replace(recipe, type="f32")})


def plainer_params(case: Case) -> Iterator[Case]:
    """A parameter left out, for its default; a number lower; one number of several lower."""
    defaults = OPERATIONS[case.op].params
    for name, value in case.params.items():
        rest = {k: v for k, v in case.params.items() if k != name}
        if defaults.get(name, REQUIRED) is not REQUIRED:
            yield from _checked(case, rest)
        for plainer in _plainer(value):
            yield from _checked(case, {**rest, name: plainer})


def _checked(case: Case, params: Mapping[str, Any]) -> Iterator[Case]:
    try:
        yield with_sizes(case, sizes_of(case), params)
    except BadInput:
        return


def _plainer(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield from (False,) if value else ()
    elif isinstance(value, int):
        yield from (n for n in (0, 1, 2, value // 2) if n < value)
    elif isinstance(value, (tuple, list)):
        for i, one in enumerate(value):
            yield from ((*value[:i], lower, *value[i + 1 :]) for lower in _plainer(one))


def fewer_axes(case: Case) -> Iterator[Case]:
    """One axis less where "..." stands for several."""
    sizes = sizes_of(case)
    leading = [name for name in sizes if name.startswith("...")]
    rest = {name: size for name, size in sizes.items() if name not in leading}
    for left_out in leading if len(leading) > 1 else ():
        kept = [sizes[name] for name in leading if name != left_out]
        try:
            yield with_sizes(case, {f"...{i}": size for i, size in enumerate(kept)} | rest)
        except BadInput:
            continue


def in_size(case: Case, name: str, size: int) -> Iterator[Case]:
    """The case with one size changed; where it does not fit its neighbours, with one of them changed too."""
    sizes = sizes_of(case)
    changed = {**sizes, name: size}
    try:
        yield with_sizes(case, changed)
        return
    except BadInput:
        pass
    made = 0
    for repaired in _repairs(case, changed, name):
        try:
            fitting = with_sizes(case, *repaired)
        except BadInput:
            continue
        yield fitting
        made += 1
        if made == _REPAIRS:
            return


def in_equal_sizes(case: Case, name: str, size: int) -> Iterator[Case]:
    """The case with every size and integer parameter changed that is as large as the one called `name`."""
    sizes = sizes_of(case)
    same = [other for other, value in sizes.items() if value == sizes[name]]
    params = {k: size if type(v) is int and v == sizes[name] else v for k, v in case.params.items()}
    if len(same) > 1 or params != case.params:
        try:
            yield with_sizes(case, {**sizes, **dict.fromkeys(same, size)}, params)
        except BadInput:
            return


def _repairs(case: Case, sizes: Sizes, name: str) -> Iterator[tuple[Sizes, Mapping[str, Any]]]:
    """The sizes with an integer parameter, or another size, that may go with the one called `name`."""
    full = {**OPERATIONS[case.op].params, **case.params}
    numbers = [param for param, value in full.items() if type(value) is int]
    tried = dict.fromkeys((1, 2, sizes[name], 3))
    for param in numbers:
        yield from ((sizes, {**case.params, param: n}) for n in tried if n <= full[param])
    for other in sizes:
        if other != name:
            yield from (({**sizes, other: n}, case.params) for n in tried if n <= sizes[other])
    for param, value in full.items():
        if isinstance(value, (tuple, list)) and all(type(one) is int for one in value):
            yield from ((sizes, {**case.params, param: (n,) * len(value)}) for n in (0, 1, 2))


def rungs(size: int) -> list[int]:
    """Smaller sizes to try, the smallest first."""
    return [rung for rung in _LADDER if rung < size]
