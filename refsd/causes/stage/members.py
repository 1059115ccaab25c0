"""Find a wrong share of several like inputs: each adapter's scale with the first one's alpha, or all ranks' sum.

Inputs of which only a part of the name differs are one for each of several members: `to_q.alpha`, `to_k.alpha`. A
factor is solved for each member, all at once; then each quantity of the members (a number, a length) is tried for
what an engine took in its place: the first member's for all, the sum, the next.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from refsd.causes.stage.scene import Scene
from refsd.golden.judge import Answer
from refsd.stages.stage import Tensors

_NEAR = 1e-4
_MOST = 8
# Phrase -> what an engine takes in place of each member's own.
_TAKEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the first one's {}": lambda q: np.full_like(q, q[0]),
    "the last one's {}": lambda q: np.full_like(q, q[-1]),
    "the next one's {}": lambda q: np.roll(q, -1),
    "the {} of the one before": lambda q: np.roll(q, 1),
    "the sum of each {}": lambda q: np.full_like(q, q.sum()),
    "the largest {}": lambda q: np.full_like(q, q.max()),
    "the smallest {}": lambda q: np.full_like(q, q.min()),
    "the mean of each {}": lambda q: np.full_like(q, q.mean()),
    "1": lambda q: np.ones_like(q),
}
_POWERS = {1: "multiplied by", -1: "divided by", 0.5: "multiplied by the root of", -0.5: "divided by the root of"}

Run = Callable[[Callable[[Tensors], Tensors]], Answer | None]


def member_causes(scene: Scene, run: Run) -> Iterator[str]:
    """Yield what was taken in place of each member's own number. run: a change of the inputs -> the answer"""
    for members, inputs in _groups(scene.inputs.tensors).items():
        quantities = _quantities(members, scene.inputs.tensors)
        for names in inputs:
            factors = _factors(scene, names, run) if quantities else None
            if factors is None or (factors <= 0).any() or np.abs(factors - 1).max() < _NEAR:
                continue
            named = _named(factors, quantities)
            yield from named
            if named:
                return


def _groups(tensors: Tensors) -> dict[tuple[str, ...], list[list[str]]]:
    """Return members -> the names of each input that all of them have, where one part of the name differs."""
    kinds: dict[tuple[str, str], dict[str, str]] = {}
    for name in tensors:
        parts = name.split(".")
        for i, part in enumerate(parts[:-1]):
            kinds.setdefault((".".join(parts[:i]), ".".join(parts[i + 1 :])), {})[part] = name
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for (before, _), by_member in kinds.items():
        names = [*by_member.values()]
        if 1 < len(names) <= _MOST and tensors[names[0]].dtype.kind == "f":
            prefix = f"{before}." if before else ""
            groups.setdefault(tuple(prefix + member for member in by_member), []).append(names)
    return groups


def _quantities(members: tuple[str, ...], tensors: Tensors) -> dict[str, np.ndarray]:
    """Return the positive numbers and the lengths that each member has, and that differ between them."""
    own = [
        {name.removeprefix(f"{member}."): y for name, y in tensors.items() if name.startswith(f"{member}.")}
        for member in members
    ]
    found: dict[str, list[float]] = {}
    for name in own[0]:
        if all(name in parts for parts in own):
            if all(parts[name].size == 1 for parts in own):
                found[name] = [float(parts[name].ravel()[0]) for parts in own]
            elif len({parts[name].ndim for parts in own}) == 1:
                for axis in range(own[0][name].ndim):
                    found[f"length of axis {axis} of {name}"] = [parts[name].shape[axis] for parts in own]
    arrays = {name: np.array(values, np.float64) for name, values in found.items()}
    lengths = {name: q for name, q in arrays.items() if name.startswith("length")}
    for q in lengths.values():
        if sum(np.array_equal(q, other) for other in lengths.values()) > 1 and "rank" not in arrays:
            arrays = {"rank": q} | {key: one for key, one in arrays.items() if not np.array_equal(one, q)}
    return {name: q for name, q in arrays.items() if (q > 0).all()}


def _factors(scene: Scene, names: list[str], run: Run) -> np.ndarray | None:
    """Return the factor of each input with which the reference gives the engine's answer; None if there is none.

    The answer must be linear in the inputs.
    """
    wrong = scene.wrong
    actual = np.asarray(scene.actual[wrong], np.float64)

    def with_factors(factors: np.ndarray) -> Answer | None:
        by_name = dict(zip(names, factors, strict=True))
        return run(lambda tensors: {n: y * by_name[n] if n in by_name else y for n, y in tensors.items()})

    without = with_factors(np.zeros(len(names)))
    each = [with_factors(np.eye(len(names))[i]) for i in range(len(names))]
    if without is None or any(one is None or np.shape(one[wrong]) != actual.shape for one in each):
        return None
    columns = np.stack([(np.asarray(one[wrong]) - without[wrong]).ravel() for one in each if one], axis=1)
    if actual.size < len(names) or not np.isfinite(columns).all() or np.linalg.matrix_rank(columns) < len(names):
        return None
    factors = np.linalg.lstsq(columns, (actual - without[wrong]).ravel(), rcond=None)[0]
    return factors if scene.explained(with_factors(factors)) else None


def _named(factors: np.ndarray, quantities: dict[str, np.ndarray]) -> list[str]:
    """Name what gives the factors: one quantity, else one over another."""
    single = []
    for name, own in quantities.items():
        ratios = (
            (f"each is {how} {words.format(name)}, not its own {name}", (taken(own) / own) ** power)
            for words, taken in _TAKEN.items()
            for power, how in _POWERS.items()
        )
        single += [phrase for phrase, ratio in ratios if np.allclose(factors, ratio, rtol=_NEAR)][:1]
    pairs = (
        (f"each has {words.format(f'{name} over {other}')}, not its own", taken(own) / own * its / taken(its))
        for (name, own), (other, its) in itertools.permutations(quantities.items(), 2)
        for words, taken in _TAKEN.items()
        if "{}" in words
    )
    return single or [phrase for phrase, ratio in pairs if np.allclose(factors, ratio, rtol=_NEAR)][:1]
