"""Solvers and schedules with one thing in their text changed, held against an engine's trajectory.

Where no known bug explains a trajectory, each formula that the reference ran is changed in one place: another
variable, a term dropped, a statement left out. The cause is quoted in the solver's own words.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from refsd.causes.generic.formula_variants import Text
from refsd.causes.generic.relations import relation
from refsd.causes.generic.running_code import apart, executed, in_time, swapped
from refsd.causes.generic.solved_numbers import shown
from refsd.causes.trajectory.moved_history import moved_history
from refsd.golden.case import Case
from refsd.trajectory.forms import Forms, forms
from refsd.trajectory.run import Dump, sigmas_of, solver_of

# CPU seconds for one trajectory, and for one changed formula.
_SECONDS, _ONE = 8.0, 0.3
# The same for all histories.
_HISTORY = 4.0
_MOST = 4
_NOT = ("refsd.samplers.latents", "refsd.samplers.step")
# What a step may take for its end: the share to / sigma of the start -> another share.
_ENDS: dict[str, Callable[[float], float]] = {
    "sigma exp(to / sigma - 1), as if the rate 1 / sigma stood still during the step": lambda r: math.exp(r - 1),
    "the mean of both, as of half a step": lambda r: (1 + r) / 2,
    "their geometric mean": lambda r: math.sqrt(r),
    "the step done twice": lambda r: r * r,
    "twice the difference": lambda r: 2 * r - 1,
    "sigma / (2 - to / sigma), the slope taken at the end": lambda r: 1 / (2 - r),
}


class Run(NamedTuple):
    """
    explains: forms -> whether with them every step is the engine's
    near:     sigmas -> whether they are the engine's
    """

    case: Case
    y: Dump
    right_sigmas: bool
    explains: Callable[[Forms], bool]
    near: Callable[[np.ndarray], bool]


def changed_solvers(run: Run) -> list[str]:
    """What explains the trajectory, the likeliest first; nothing where the right solver does."""
    right = forms(solver_of(run.case), run.y.sigmas)
    if run.right_sigmas and run.explains(right):
        return []
    told = lambda: ([phrase] for phrase in [moved_history(right, run.explains)] if phrase)
    if run.right_sigmas and (moved := apart(told, _HISTORY)):
        return moved[0]
    search = _solver if run.right_sigmas else _schedule
    found = sorted(apart(lambda: search(run), _SECONDS))
    return list(dict.fromkeys(phrase for _, _, phrase in found))[:_MOST]


def _solver(run: Run) -> Iterator[list]:
    right = forms(solver_of(run.case), run.y.sigmas)

    def explains(form: Forms) -> bool:
        same = form.rows.shape == right.rows.shape and np.array_equal(form.steps, right.steps)
        return same and bool(np.isfinite(form.rows).all()) and run.explains(form)

    yield from _search(lambda: forms(solver_of(run.case), run.y.sigmas.copy()), explains)


def _schedule(run: Run) -> Iterator[list]:
    def explains(sigmas: np.ndarray) -> bool:
        same = np.shape(sigmas) == run.y.sigmas.shape and np.isfinite(sigmas).all()
        return bool(same) and run.near(np.asarray(sigmas))

    yield from _search(lambda: sigmas_of(run.case), explains)


def _search(run: Callable, explains: Callable) -> Iterator[list]:
    """[kind of change, order of the function, phrase] of each change with which the run explains the engine's."""
    for order, function in enumerate(executed(run, _is_formula)):
        try:
            text = Text(function)
        except LookupError:
            continue
        for variant in text.variants():
            with swapped(function, variant.code):
                found = in_time(run, _ONE)
            if found is not None and in_time(lambda found=found: explains(found), _ONE):
                yield [variant.rank, order, variant.phrase]


def _is_formula(module: str) -> bool:
    return module.startswith("refsd.samplers") and module not in _NOT


def first_wrong(expected: np.ndarray, limits: np.ndarray, y: Dump) -> int | None:
    """Return the index of the first model call whose latent does not follow from the engine's earlier steps.

    len(calls) for the final latent; None if all follow.
    """
    states = np.concatenate([y.x, y.latent[None]]).astype(np.float64)
    wrong = (np.abs(states - expected) - 4 * limits).reshape(len(states), -1).max(axis=1) > 0
    return int(np.argmax(wrong)) if wrong.any() else None


def changed_weights(form: Forms, expected: np.ndarray, limits: np.ndarray, y: Dump, noise: np.ndarray) -> str:
    """The first wrong call as a sum of what came before it: the weights that differ; "" where no sum fits."""
    states, k = np.concatenate([y.x, y.latent[None]]).astype(np.float64), first_wrong(expected, limits, y)
    if k is None:
        return ""
    if k == 0:
        return _start(expected[0], states[0], limits[0], float(y.sigmas[0]))
    terms, right = _terms(form, k, y, noise)
    elsewhere = _other_sigma(form, k, states[k], limits[k], y)
    if elsewhere:
        return elsewhere
    names, columns = [*terms], [*terms.values()]
    other = _other_answer(k, states[k] - expected[k], limits[k] + 2.0**-20 * np.abs(states[k]).max(), y)
    if other:
        return other
    for chosen in _fewest(right, len(names)):
        own = _fitted(columns, np.array(right), chosen, states[k], limits[k])
        if own is not None:
            return _told(k, y, names, own, right)
    return ""


def _start(right: np.ndarray, actual: np.ndarray, limit: np.ndarray, sigma: float) -> str:
    """Say by which factor the latent that the model is shown first is off, and what gives this factor."""
    factor = float(np.vdot(right, actual) / np.vdot(right, right))
    if (np.abs(actual - factor * right) > 4 * abs(factor) * limit + 2.0**-20 * np.abs(actual)).any():
        return ""
    text = relation(sigma * factor, 1.0, {"sigma[0]": sigma})
    return f"x[0] is {shown(factor)} times what it should be{text and f': it is noise times {text}'}"


def _other_answer(k: int, error: np.ndarray, limit: np.ndarray, y: Dump) -> str:
    """Name a guided answer in the place of those without the prompt, or the reverse, in what makes call k."""
    if y.uncond is None:
        return ""
    apart = (y.denoised - y.uncond)[:k].reshape(min(k, len(y.x)), -1).T
    moved = np.linalg.lstsq(apart, error.ravel(), rcond=None)[0]
    if (np.abs(apart @ moved - error.ravel()).reshape(error.shape) > 4 * limit).any():
        return ""
    one, other = ("denoised", "uncond")[:: 1 if moved[np.argmax(np.abs(moved))] > 0 else -1]
    return f"{one} stands where {other} belongs, in {f'x[{k}]' if k < len(y.x) else 'latent'}"


def _fewest(right: list[float], count: int) -> Iterator[tuple[int, ...]]:
    """Yield the terms whose weights may be wrong, the fewest first: of dependent terms many sums are the same."""
    for some in range(1, _MOST):
        chosen = itertools.combinations(range(count), some)
        yield from sorted(chosen, key=lambda places: [right[i] == 0 for i in places].count(True))
    yield tuple(i for i in range(count) if right[i])
    yield tuple(range(count))


def _other_sigma(form: Forms, k: int, state: np.ndarray, limit: np.ndarray, y: Dump) -> str:
    """If a straight step along the slope is right, and the engine's goes to another sigma: which."""
    right = form.rows[k]
    straight = np.zeros_like(right)
    straight[[k - 1, form.calls + k - 1]] = right[k - 1], 1 - right[k - 1]
    if not np.allclose(right, straight, atol=1e-9):
        return ""
    x, denoised = (np.asarray(of[k - 1], np.float64) for of in (y.x, y.denoised))
    share = float(np.vdot(x - denoised, state - denoised) / (np.vdot(x - denoised, x - denoised) or 1.0))
    rest = np.abs(denoised + share * (x - denoised) - state)
    if not (rest <= 4 * limit + 2.0**-18 * np.abs(state).max()).all():
        return ""
    where, sigma = f"x[{k}]" if k < len(y.x) else "latent", float(form.sigmas[k - 1])
    own, text = right[k - 1], ""
    for words, other in _ENDS.items():
        text = f": {words}" if abs(other(own) - share) <= 2e-5 * abs(share) else text
    return f"{where} goes to sigma {shown(share * sigma)}, where it should go to {shown(own * sigma)}{text}"


def step_sigmas(form: Forms, y: Dump) -> np.ndarray | None:
    """Return the sigmas to which straight steps along each slope go; None where they do not fall to 0."""
    ends = [float(form.sigmas[0])]
    for x, denoised, then in zip(y.x, y.denoised, [*y.x[1:], y.latent], strict=True):
        slope = np.asarray(x, np.float64) - denoised
        ends.append(ends[-1] * float(np.vdot(slope, then - denoised) / (np.vdot(slope, slope) or 1.0)))
    sigmas = np.array(ends) * (np.abs(ends) > 1e-6 * ends[0])
    return sigmas if len(sigmas) == len(y.sigmas) and (np.diff(sigmas) < 0).all() and not sigmas[-1] else None


def _fitted(
    terms: list[np.ndarray], right: np.ndarray, chosen: tuple[int, ...], state: np.ndarray, limit: np.ndarray
) -> np.ndarray | None:
    """Return the weights under which the terms are the state, only the chosen ones other than the right ones."""
    columns = np.stack([np.ravel(t) for t in terms], axis=1).astype(np.float64)
    free = columns[:, list(chosen)]
    if len(columns) < 4 * len(chosen) or not chosen:
        return None
    rest = state.ravel() - columns @ right
    change, _, rank, _ = np.linalg.lstsq(free, rest, rcond=1e-9)
    own = right.copy()
    own[list(chosen)] += change
    left = np.abs(free @ change - rest).reshape(state.shape)
    fits = (left <= 4 * limit + 2.0**-18 * np.abs(state).max()).all()
    return own if rank == len(chosen) and fits else None


def _told(k: int, y: Dump, names: list[str], own: np.ndarray, right: list[float]) -> str:
    least = 1e-4 * np.abs(own).max()
    parts = [
        f"{name} {shown(a)} times for {shown(b)}" if abs(a) > least else f"{name} left out"
        for name, a, b in zip(names, own, right, strict=True)
        if abs(a - b) > least
    ]
    where = f"x[{k}]" if k < len(y.x) else "latent"
    return f"in {where} {' and '.join(parts[:_MOST])}" if parts else ""


def _terms(form: Forms, k: int, y: Dump, noise: np.ndarray) -> tuple[dict[str, np.ndarray], list[float]]:
    """What call k may be a sum of, by name, and the right weights."""
    terms, right = {}, []
    for block, (name, source) in enumerate((("x", y.x), ("denoised", y.denoised))):
        for j in range(min(k, form.calls)):
            terms[f"{name}[{j}]"] = source[j]
            right.append(float(form.rows[k, block * form.calls + j]))
    for j in range(form.draws):
        terms[f"noise {j + 1}"] = noise[1 + j]
        right.append(float(form.rows[k, form.known + j]))
    return terms, right
