"""Draw a random case: a case of the operation's page with other sizes, parameters and data.

What a page declares (shapes with named sizes, `fits`, the cases' data sets, types and parameters) is all that is
needed: a new operation is fuzzed without a line here. The same seed, operation and number give the same case.
"""

import math
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
from msgspec.structs import replace

from refsd.golden.case import Case
from refsd.golden.operation import Operation
from refsd.golden.operations import OPERATIONS
from refsd.golden.recipe import Recipe
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.requests.random_case import LAYOUTS, RandomCase, name_of
from refsd.shrinking import moves

# Sizes at the limits of vectors, tiles and blocks, and one beside them.
_LIMITS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_LARGE = (511, 512, 513, 1023, 1024, 1025, 2049)
# Products of all sizes: of nine cases in ten, of one in ten, and of one in a hundred.
_WORK, _MORE, _MUCH = 1 << 18, 1 << 21, 1 << 24
_LARGEST = 1 << 18  # numbers of one input
# Data sets that any input of numbers can have, and how often.
_DATA = {
    "bell": 6,
    "outliers": 2,
    "wide": 2,
    "positive": 1,
    "tiny": 2,
    "shifted": 2,
    "integers": 1,
    "constant": 2,
    "prefix": 1,
}
_FLOATS = ("f32", "f16", "bf16")
_ATTEMPTS = 20


def draw(seed: int, op: str, number: int) -> RandomCase:
    """The random case of this seed, operation and number."""
    random = Random(f"{seed}/{op}/{number}")
    operation, name = OPERATIONS[op], name_of(seed, op, number)
    small = [case for case in operation.cases if _small(case)]
    for _ in range(_ATTEMPTS):
        case = replace(random.choice(small or list(operation.cases)), name=name)
        case = _with_params(random, operation, case)
        case = _with_other_sizes(random, operation, case)
        case = _within_limits(random, operation, case)
        case = _with_data(random, operation, case)
        try:
            case.realize()
        except BadInput:  # values beyond a storage type
            continue
        layout = random.choices([*LAYOUTS], [5, 2, 2, 1, 1])[0]
        return RandomCase(name, op, case.inputs, case.params, None, layout)
    raise BadInput(f"{name}: no case could be drawn")


def _small(case: Case) -> bool:
    return all(math.prod(recipe.shape) <= _LARGEST for recipe in case.inputs.values())


def _whole_blocks(case: Case) -> bool:
    blocks = [recipe for recipe in case.inputs.values() if recipe.type in BLOCK_TYPES]
    return all(recipe.shape[-1] % BLOCK_TYPES[recipe.type].block == 0 for recipe in blocks)


# --- sizes ---


def _size(random: Random) -> int:
    kind = random.random()
    if kind < 0.45:
        return random.randint(1, 12)
    if kind < 0.8:
        return random.choice(_LIMITS)
    return random.choice(_LARGE) if kind < 0.86 else random.randint(13, 320)


def _with_other_sizes(random: Random, op: Operation, case: Case) -> Case:
    case = _other_axes(random, case)
    names = [*moves.sizes_of(case)]
    random.shuffle(names)
    for name in names:
        if random.random() < 0.6:
            case = _resized(random, case, name, _size(random))
    return case


def _resized(random: Random, case: Case, name: str, size: int) -> Case:
    """The case with another size where it fits, perhaps with a neighbour changed; else as it is."""
    blocks = {BLOCK_TYPES[recipe.type].block for recipe in case.inputs.values() if recipe.type in BLOCK_TYPES}
    for wanted in (size, *(-(-size // block) * block for block in blocks)):
        fitting = [other for other in moves.in_size(case, name, wanted) if _whole_blocks(other)]
        if fitting:
            return random.choice(fitting)
    return case


def _other_axes(random: Random, case: Case) -> Case:
    """Another number of axes where "..." stands for any."""
    sizes = moves.sizes_of(case)
    leading = [name for name in sizes if name.startswith("...")]
    if not leading or random.random() < 0.5:
        return case
    rest = {name: size for name, size in sizes.items() if name not in leading}
    count = random.randint(0 if rest else 1, 3 if rest else 4)
    try:
        return moves.with_sizes(case, {f"...{i}": random.choice((1, 2, 3, 5)) for i in range(count)} | rest)
    except BadInput:
        return case


def _work(op: Operation, case: Case) -> int:
    numbers = [v for k, v in {**op.params, **case.params}.items() if type(v) is int and k in op.output and v > 0]
    return math.prod(moves.sizes_of(case).values()) * math.prod(numbers)


def _within_limits(random: Random, op: Operation, case: Case) -> Case:
    """The largest sizes made smaller until the case is answered in some milliseconds."""
    limit = random.choices((_WORK, _MORE, _MUCH), (180, 18, 2))[0]
    for _ in range(60):
        if _work(op, case) <= limit and _small(case):
            break
        sizes = moves.sizes_of(case)
        large = [name for name in sizes if sizes[name] > 8] or [*sizes]
        name = random.choice(large)
        case = _resized(random, case, name, max(1, sizes[name] // random.choice((2, 3, 8))))
    return case


# --- parameters ---


def _with_params(random: Random, op: Operation, case: Case) -> Case:
    """Some parameters changed, each where the shapes still fit."""
    for name in op.params:
        if random.random() < 0.4:
            seen = [other.params[name] for other in op.cases if name in other.params]
            value = _other_value(random, case.params.get(name, op.params[name]), seen)
            try:
                case = moves.with_sizes(case, moves.sizes_of(case), {**case.params, name: value})
            except (BadInput, TypeError):
                continue
    return case


def _other_value(random: Random, value: Any, seen: list[Any]) -> Any:
    if isinstance(value, bool):
        return not value
    if seen and (random.random() < 0.4 or value is None or isinstance(value, str)):
        return random.choice(seen)
    if isinstance(value, int):
        return random.choice((1, 2, 3, value - 1, value + 1, 2 * value))
    if isinstance(value, float):
        other = value * random.choice((0.1, 0.5, 2.0, 10.0)) if value else random.choice((0.5, 1.0))
        return float(np.float32(other))  # engines take it as such
    if isinstance(value, (tuple, list)):
        return tuple(max(0, one + random.choice((-1, 0, 0, 1, 2))) for one in value)
    return value


# --- data ---


def _with_data(random: Random, op: Operation, case: Case) -> Case:
    inputs = {name: _other_data(random, op, name, recipe) for name, recipe in case.inputs.items()}
    return replace(case, inputs=inputs)


def _other_data(random: Random, op: Operation, name: str, recipe: Recipe) -> Recipe:
    recipe = replace(recipe, seed=random.randrange(1 << 32))
    if recipe.type not in _FLOATS or random.random() < 0.4:
        return recipe
    known = {other.inputs[name].data for other in op.cases if name in other.inputs}
    if known <= {"positive"}:  # a variance
        return replace(recipe, exponent=recipe.exponent + random.choice((-12, -4, 0, 4)))
    if name == "x_scale":  # a scale that was measured beforehand
        return replace(recipe, offset=recipe.offset * 2.0 ** random.choice((-6, -1, 0, 1, 6)))
    if recipe.data not in _DATA or not recipe.shape:
        return recipe
    data = random.choices([*_DATA], [*_DATA.values()])[0]
    return _DRAWN.get(data, _scaled)(random, replace(recipe, data=data))


def _scaled(random: Random, recipe: Recipe) -> Recipe:
    """Quiet, as it was, or loud."""
    moved = random.choice((-30, -14, -6, 0, 0, 0, 0, 3, 7))
    return replace(recipe, exponent=max(-60, recipe.exponent + moved))


def _constant(random: Random, recipe: Recipe) -> Recipe:
    return replace(recipe, offset=random.choice((0.0, 1.0, -3.7, 1000.0, 1e-6)))


def _prefix(random: Random, recipe: Recipe) -> Recipe:
    return replace(recipe, exponent=0, offset=0.0, n=random.choice((0, 1, 3, 40, -3)))


_DRAWN: dict[str, Callable[[Random, Recipe], Recipe]] = {
    "constant": _constant,
    "prefix": _prefix,
    "integers": lambda random, recipe: replace(recipe, exponent=0, offset=0.0),
}


def rounds(seed: int, ops: Iterable[str]):
    """All operations in a new order, again and again -> operation, number."""
    names, number = list(ops), 0
    while True:
        Random(f"{seed}/{number}").shuffle(names)
        yield from ((op, number) for op in names)
        number += 1
