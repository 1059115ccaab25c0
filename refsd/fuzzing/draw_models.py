"""Draw a random case of a model: a case of the corpus in another tiny family, type, size, with other data.

What a component's page declares (shapes by letters, what its weights ask of them) says which sizes go together. The
same seed, component and number give the same case.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np
from msgspec.structs import replace

from refsd.cases import CASES
from refsd.components import COMPONENTS, check
from refsd.components.hollow import fits_of, hollow_module
from refsd.golden.case import Case, Dimension, ModelRecipe
from refsd.golden.recipe import Recipe
from refsd.networks.fits import Fit
from refsd.numerics.errors import BadInput
from refsd.requests.random_case import RandomCase, name_of
from refsd.shrinking.named_axes import sizes_of, with_sizes

MODEL = "model/"
# Storage types of weights, and how often.
_TYPES = {"f32": 6, "f16": 3, "bf16": 2, "q8_0": 2, "q4_0": 1, "q5_1": 1, "q4_k": 1, "q6_k": 1}
_QUIET = {0: 6, 3: 1, 6: 2}
# Tokens at the limits of vectors, tiles and chunks.
_TOKENS = (1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 77, 127, 128, 129, 154)
# Sides, in units of what the model asks for, and the most that they may be.
_SIDES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 12, 16)
_LONGEST_SIDE = 64
# H W; of encoders' and vision towers' pictures 16 times as many.
_MOST_PIXELS = 256
_MOST_NUMBERS = 1 << 17  # of one input
# Data sets of latents and hidden states, and how often; how loud they are.
_DATA = {"bell": 8, "outliers": 3, "wide": 1, "integers": 1, "constant": 1}
_MOVED = (-30, -6, 0, 0, 0, 0, 0, 3)
_DRAWN = ("x", "z", "context", "y", "hint", "reference")
_ATTEMPTS = 60


def draw_model(seed: int, op: str, number: int) -> RandomCase:
    """The random case of this seed, component and number. Raises BadInput where none can be drawn."""
    return draw_of(bases(op), Random(f"{seed}/{op}/{number}"), (seed, op, number))


def draw_of(
    cases: Sequence[Case],
    random: Random,
    number: tuple[int, str, int],
    resized: Callable[[Random], tuple[tuple[str, Dimension], ...]] | None = None,
) -> RandomCase:
    """A random case made of one of `cases`. Raises BadInput where none can be drawn.

    number:  seed, operation and number of its name
    resized: dimensions of the model in place of the tiny one's
    """
    name = name_of(*number)
    for _ in range(_ATTEMPTS):
        base = random.choice(cases)
        model = _other_model(random, base)
        model = replace(model, sizes=resized(random)) if resized is not None else model
        case = replace(base, name=name, model=model, inputs=_other_inputs(random, base))
        try:
            fits = fits_of(case)
            case = _with_data(random, _with_other_sizes(random, case, fits))
            _check(case)
        except BadInput:
            continue
        return RandomCase(name, base.op, case.inputs, case.params, case.model)
    raise BadInput(f"{name}: no case could be drawn")


@functools.cache
def bases(op: str) -> list[Case]:
    """The corpus' cases of a component on tiny models."""
    return [case for case in CASES.values() if case.op == op and case.model is not None and case.model.tiny]


def components() -> list[str]:
    """The components of which random cases can be drawn: "model/unet", ..."""
    return list(dict.fromkeys(case.op for case in CASES.values() if case.op.startswith(MODEL) and bases(case.op)))


def _other_model(random: Random, base: Case) -> ModelRecipe:
    assert base.model is not None
    kind = random.choices([*_TYPES], [*_TYPES.values()])[0] if random.random() < 0.7 else base.model.type
    return replace(base.model, type=kind, quiet=random.choices([*_QUIET], [*_QUIET.values()])[0])


def _other_inputs(random: Random, base: Case) -> dict[str, Recipe]:
    """Each input as it is, or as in another case of the family: other times, another guidance, a mask or none."""
    assert base.model is not None
    kin = [one for one in bases(base.op) if one.model is not None and one.model.family == base.model.family]
    inputs = dict(base.inputs)
    for name in {name for one in kin for name in one.inputs}:
        other = random.choice(kin)
        if name in other.inputs and name in inputs:
            inputs[name] = replace(other.inputs[name], shape=inputs[name].shape)
    return inputs


def _with_other_sizes(random: Random, case: Case, fits: Mapping[str, Fit]) -> Case:
    wanted = {name: fits[name].n for name, n in sizes_of(case).items() if name in fits and not fits[name].holds(n)}
    sizes = {**sizes_of(case), **wanted}
    changed = {name: _size(random, name, n, fits.get(name)) for name, n in sizes.items()}
    return with_sizes(case, changed)


def _size(random: Random, name: str, before: int, fit: Fit | None) -> int:
    """Another size, if the weights do not tell it."""
    if name == "N":
        return random.choice((1, 1, 2, 2, 3))
    if name in "HWhw":
        unit = fit.n if fit is not None else 1
        side = min(_LONGEST_SIDE, unit * random.choice(_SIDES))
        odd = side + random.randrange(unit)
        return next(n for n in (odd, side, before) if fit is None or fit.holds(n))
    tokens = random.choice(_TOKENS) if random.random() < 0.6 else random.randint(1, 100)
    return tokens if name in "JL" and (fit is None or fit.holds(tokens)) else before


def _with_data(random: Random, case: Case) -> Case:
    inputs = {}
    for name, recipe in case.inputs.items():
        recipe = replace(recipe, seed=random.randrange(1 << 32))
        if recipe.data == "prefix":  # a mask: each row has so many ones less than the one before, or more
            most = max(1, recipe.shape[-1] // recipe.shape[0])
            recipe = replace(recipe, n=random.randrange(1 - most, most))
        if name in _DRAWN and recipe.data in ("bell", "outliers") and random.random() < 0.5:
            data = random.choices([*_DATA], [*_DATA.values()])[0]
            recipe = replace(recipe, data=data, exponent=max(-60, recipe.exponent + random.choice(_MOVED)))
        inputs[name] = recipe
    return replace(case, inputs=inputs)


def _check(case: Case) -> None:
    """Raise BadInput unless the component accepts the case, and it is answered in some tenths of a second."""
    sizes = sizes_of(case)
    if any(math.prod(recipe.shape) > _MOST_NUMBERS for recipe in case.inputs.values()):
        raise BadInput(f"{case.name}: too large")
    if sizes.get("H", 1) * sizes.get("W", 1) > _MOST_PIXELS * (
        16 if "encoder" in case.op or "vision" in case.op else 1
    ):
        raise BadInput(f"{case.name}: too large")
    values: dict[str, np.ndarray] = {name: tensor.values() for name, tensor in case.realize().items()}
    # What stands in a model's file, as the number of heads: any that fits will do here.
    name = case.op.removeprefix(MODEL)
    usual = COMPONENTS[name].params if name in COMPONENTS else {}
    params: dict[str, object] = {}
    for param, fit in fits_of(case).items():
        if fit.n and param.startswith("num_"):
            params[param] = fit.n
        elif param in usual and usual[param] is not None and not fit.holds(usual[param]):
            params[param] = [*range(fit.n)] if isinstance(usual[param], list) else fit.n
    check(name, hollow_module(case), values, {**params, **case.params}, case.name)
