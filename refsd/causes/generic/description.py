"""Describe how a wrong answer differs from the truth, where no known bug explains it.

Each phrase states a change of the truth. It holds within an honest run's error: the truth so changed differs from
the answer by no more than the verdict allows, and by at most half as much as the truth itself does.
An error that looks like noise gets no description.
"""

from collections.abc import Sequence

import numpy as np

from refsd.causes.generic.error_places import Places, border, contents, flat_tail, joined, places, seen
from refsd.causes.generic.moved_values import moved
from refsd.causes.generic.simple_relations import coarser, formula, limited
from refsd.golden.evidence import Evidence
from refsd.golden.wording import counted


def describe(actual: np.ndarray, truth: np.ndarray, honest: np.ndarray, channel: int) -> list[str]:
    """Say in plain phrases how an answer differs from the truth, the surest first; empty if nothing is sure.

    actual:  the engine's output, any floating dtype
    truth:   float64; honest: the reference under the engine's numerics; all of one shape
    channel: the axis of channels
    """
    evidence = seen(actual, truth, honest)
    if evidence is None or evidence.rough:
        return []
    cut = limited(evidence)
    if cut is not None:
        return [cut.phrase]
    where = places(evidence, channel)
    flat = flat_tail(evidence) if len(where.phrases) < 2 and where.mask is None else None
    located = where.phrases or tuple(filter(None, [border(evidence, channel)]))
    located = (flat,) if flat else located
    place = [f"the error is only in {joined(located, 'and')}"] if located else []
    inside = contents(evidence, where.inside)
    if not evidence.finite:
        return _not_finite(evidence, where, located)
    if inside is not None and _constant(evidence.actual):
        return [f"all of it is {inside}"]
    if not where.phrases:
        relation = formula(evidence)
        if relation is not None:
            return [relation.phrase]
    if inside is not None:
        return [_standing(evidence, where, inside, place)]
    arrangement = moved(evidence, channel)
    if arrangement is not None:
        return [arrangement.phrase]
    if not where.phrases:
        relation = coarser(evidence)
        return [relation.phrase] if relation else place
    part = evidence.part(where.inside)
    relation = formula(part) or moved(part, channel) or coarser(part)
    return [*place, *([f"there {relation.phrase}"] if relation and not flat else [])]


def _not_finite(evidence: Evidence, where: Places, located: Sequence[str]) -> list[str]:
    """Say where an answer is not finite. where, located: where it is wrong, with its phrases"""
    odd = ~np.isfinite(evidence.actual)
    values = evidence.actual[odd]
    kind = "NaN" if np.isnan(values).all() else "NaN or infinite" if np.isnan(values).any() else "infinite"
    alone = np.array_equal(odd, evidence.wrong())
    if odd.all():
        return [f"all of it is {kind}, cause unknown"]
    fills = not where.phrases or odd[where.inside].all()
    if alone and located and fills:
        return [f"{kind} in {joined(located, 'and')}, cause unknown"]
    first = [int(i) for i in np.argwhere(odd)[0]]
    number = f"{kind} in {int(odd.sum())} of {counted(odd.size, 'element')}, first at {first}, cause unknown"
    return [number] if alone else [number, f"{int((evidence.wrong() & ~odd).sum())} others are wrong"]


def _standing(evidence: Evidence, where: Places, inside: str, place: list[str]) -> str:
    """Describe a place where all wrong elements hold the same content, `inside`."""
    if place and where.phrases and _constant(evidence.actual[where.inside]):
        return f"{place[0]}, and all there is {inside}"
    if place:
        return f"{place[0]}, and what is wrong there is {inside}"
    elements = counted(int(evidence.wrong().sum()), "element")
    return f"{elements} of {evidence.truth.size}, and no others, are wrong: {inside}"


def _constant(y: np.ndarray) -> bool:
    return np.array_equal(y, np.full_like(y, y.flat[0]), equal_nan=True)
