"""Find what all failing cases of an operation have and no passing case has: "C / groups % 4 != 0".

Report the simplest trait: a parameter, a type, a dimension of 1, a remainder, a ratio, a size.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.golden.operations import OPERATIONS
from refsd.golden.report import Result

# With fewer cases there is always some shared trait.
_FAILING, _PASSING = 2, 3
_LARGEST = 256
_SAID = 3
_SHOWN = 5
_ABSENT = object()
_ARGUMENT = "argument "

# "C" and "C/groups", but no sum.
_LETTERS = re.compile(r"[A-Za-z]\w*(/\w+)?")
_SIDES = {"H": "W", "R": "S", "P": "Q"}
# Parameters that divide dimensions -> the dimensions.
_COUNTS = {"groups": "CK", "num_groups": "C"}


class Trait(NamedTuple):
    """A property of a case.

    cost: the simplest trait costs least
    text: the words that follow "have"
    """

    cost: int
    text: str


class Features(NamedTuple):
    """The properties of one case from which traits are made.

    labels:  "type of weight" -> "q8_0": types, data sets, parameters, arguments that may be absent
    numbers: "C" -> 320: dimensions by the letters of the operation's page, and integer parameters
    ratios:  "C / groups" -> 40
    sides:   "H != W" -> whether the two sides of an argument differ
    """

    labels: dict[str, Any]
    numbers: dict[str, int]
    ratios: dict[str, Fraction]
    sides: dict[str, bool]


def shared_traits(results: Iterable[Result], cases: Mapping[str, Case]) -> list[str]:
    """Return a line for each engine and operation whose failing cases share a trait.

    cases: by name; results of other cases are left out
    """
    groups: dict[tuple[str, str], dict[str, list[Features]]] = {}
    for result in results:
        if result.case in cases and result.status in (verdict.FAIL, verdict.PASS):
            group = groups.setdefault((result.engine, result.op), {verdict.FAIL: [], verdict.PASS: []})
            group[result.status].append(features(cases[result.case], result.numerics))
    lines = []
    for (engine, op), group in groups.items():
        failing, passing = group[verdict.FAIL], group[verdict.PASS]
        found = shared(failing, passing)
        if found:
            have = ", and also ".join(trait.text for trait in found)
            how = f"all {len(failing)} failing cases, and none of {len(passing)} passing, have {have}"
            lines.append(f"{engine} {op}: {how}{_legend(op, have)}")
    return lines


def shared(failing: Sequence[Features], passing: Sequence[Features]) -> list[Trait]:
    """Return the simplest traits of all failing cases and no passing case, at most three; empty for too few."""
    if len(failing) < _FAILING or len(passing) < _PASSING:
        return []
    traits = sorted(_traits(failing, passing), key=lambda trait: trait.cost)
    return [trait for trait in traits if trait.cost == traits[0].cost][:_SAID]


def features(case: Case, numerics: str = "") -> Features:
    """Return the features of a case. numerics: those that the engine declares for it"""
    page = OPERATIONS.get(case.op)
    params = {**(page.params if page else {}), **case.params}
    labels: dict[str, Any] = {"numerics": numerics}
    dims: dict[str, int] = {}
    sides = {}
    letters = {}
    for name, recipe in case.inputs.items():
        labels[f"type of {name}"], labels[f"data of {name}"] = recipe.type, recipe.data
        letters[name] = _letters(case.op, name, len(recipe.shape))
        for letter, n in zip(letters[name], recipe.shape, strict=True):
            dims.setdefault(letter, n)
        for (a, n), (b, m) in pairwise(zip(letters[name], recipe.shape, strict=True)):
            if _SIDES.get(a) == b:
                sides[f"{a} != {b}"] = n != m
    for name in page.inputs if page else ():
        if name.endswith("?"):
            labels[f"{_ARGUMENT}{name.rstrip('?')}"] = name.rstrip("?") in case.inputs
    if case.model is not None:
        labels |= {"family": case.model.family, "weights": case.model.type, "quiet": case.model.quiet}
    counts = {k: v for k, v in params.items() if isinstance(v, int) and not isinstance(v, bool)}
    for name, value in params.items():
        if isinstance(value, list | tuple):
            sides[f"unequal {name}"] = any(one != value[0] for one in value)
        labels[name] = tuple(value) if isinstance(value, list) else value
    pairs = [(a, b) for b in counts for a in _COUNTS.get(b, "") if a in dims]
    pairs += _opposite(letters)
    numbers = {**dims, **counts}
    ratios = {f"{a} / {b}": Fraction(dims[a], numbers[b]) for a, b in pairs if numbers[b]}
    return Features(labels, numbers, ratios, sides)


def _letters(op: str, argument: str, rank: int) -> list[str]:
    """Return the names of an argument's axes: as the page gives them, else "x axis 0"."""
    inputs = OPERATIONS[op].inputs if op in OPERATIONS else {}
    declared = inputs.get(argument, inputs.get(f"{argument}?", ""))
    match = re.fullmatch(r"\[(.*)\]", declared)
    names = [part.strip() for part in match[1].split(",")] if match else []
    if names[:1] == ["..."]:
        names = [f"{argument} axis {axis}" for axis in range(rank - len(names) + 1)] + names[1:]
    plain = len(names) == rank
    return [
        names[axis].replace("/", " / ") if plain and _LETTERS.fullmatch(names[axis]) else f"{argument} axis {axis}"
        for axis in range(rank)
    ]


def _opposite(letters: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield dimensions of two arguments that have two letters for the same axis: H of q and G of k."""
    seen = set()
    for one, other in pairwise(letters):
        for a, b in zip(letters[one], letters[other], strict=False):
            if a != b and len(a) == len(b) == 1 and len(letters[one]) == len(letters[other]) and (a, b) not in seen:
                seen.add((a, b))
                yield a, b


def _legend(op: str, have: str) -> str:
    """Return the shapes that explain the letters of a trait, as "(q is [B, L, H, D])"."""
    inputs = OPERATIONS[op].inputs if op in OPERATIONS else {}
    letters = set(re.findall(r"\b[A-Z]\b", have))
    shown = []
    for name, shape in inputs.items():
        news = letters & set(re.findall(r"\b[A-Z]\b", shape))
        if news:
            shown.append(f"{name.rstrip('?')} is {shape}")
            letters -= news
    return f" ({', '.join(shown)})" if shown else ""


def _traits(failing: Sequence[Features], passing: Sequence[Features]) -> Iterator[Trait]:
    first = failing[0]
    for key, value in first.labels.items():
        if all(f.labels.get(key, _ABSENT) == value for f in failing):
            # A key that no passing case has belongs to an optional argument, which has a label of its own.
            if all(p.labels.get(key, value) != value for p in passing) and any(key in p.labels for p in passing):
                yield Trait(0, _of_label(key, value))
        elif len({p.labels.get(key, _ABSENT) for p in passing}) == 1:
            usual = passing[0].labels.get(key, _ABSENT)
            if usual is not _ABSENT and all(f.labels.get(key, usual) != usual for f in failing):
                yield Trait(2, f"{key} other than {usual}")
    for key in first.sides:
        for value in (True, False):
            if all(f.sides.get(key) is value for f in failing) and all(
                p.sides.get(key) is not value for p in passing
            ):
                yield Trait(
                    1, key if value else f"{key.replace('!=', '=')}" if "!=" in key else key.replace("un", "", 1)
                )
    for cost, kind in ((1, "numbers"), (2, "ratios")):
        for key in getattr(first, kind):
            every = [getattr(f, kind).get(key) for f in failing]
            others = [getattr(p, kind)[key] for p in passing if key in getattr(p, kind)]
            if all(value is not None for value in every) and others:
                yield from _of_numbers(key, every, others, cost)


def _of_label(key: str, value: Any) -> str:
    argument = key.removeprefix(_ARGUMENT)
    if argument != key:
        return argument if value else f"no {argument}"
    return f"{key} = {value}"


def _of_numbers(key: str, failing: list[Any], passing: list[Any], cost: int) -> Iterator[Trait]:
    """Yield the traits of one number, given its values in failing and in passing cases."""
    low, high = min(failing), max(failing)
    if low == high and low not in passing:
        yield Trait(cost if low == 1 or "/" in key or key in _COUNTS else cost + 1, f"{key} = {low}")
    if low > 1 and max(passing) == 1:
        yield Trait(cost, f"{key} > 1")
    whole = all(value == int(value) for value in (*failing, *passing))
    if (
        not whole
        and all(value != int(value) for value in failing)
        and all(value == int(value) for value in passing)
    ):
        yield Trait(cost, f"{key} not whole")
    if whole:
        for word, divides in (("!=", False), ("=", True)):
            found = [
                m
                for m in range(2, _LARGEST + 1)
                if all((value % m == 0) is divides for value in failing)
                and all((value % m == 0) is not divides for value in passing)
            ]
            if found:  # blocks have powers of two; another divisor is more likely chance
                chance = 2 * all(m & (m - 1) for m in found)
                yield Trait(cost + divides + chance, _remainders(key, word, found))
    if low > max(passing):
        yield Trait(cost + 2, f"{key} >= {low} (passing: at most {max(passing)})")
    if high < min(passing):
        yield Trait(cost + 2, f"{key} <= {high} (passing: at least {min(passing)})")


def _remainders(key: str, word: str, divisors: list[int]) -> str:
    """Format "C % 4 != 0", preferring powers of two, since blocks have such sizes."""
    powers = [m for m in divisors if m & (m - 1) == 0]
    m, *rest = powers or divisors[:_SHOWN]
    like = f" (as well as % {', '.join(map(str, rest))})" if rest else ""
    return f"{key} % {m} {word} 0{like}"
