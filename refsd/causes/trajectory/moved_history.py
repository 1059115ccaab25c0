"""Solvers that read their history at other steps: the value of the step before, one slope twice, a stale buffer.

A step is a sum of latents and model outputs, and noises, which stay as they are. Each kind has its ages: this
step's, the one before, 2 before. A bug reads one age where another belongs; every such exchange of few ages is
tried on every kind.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from refsd.trajectory.forms import Forms

_AGES = 4
_NAMES = ("this step's", "that of the step before", "that of 2 steps before", "that of 3 steps before")
_Move = tuple[int, ...]


def moved_history(form: Forms, explains: Callable[[Forms], bool]) -> str:
    """Return what is read in place of what, if an engine's steps show it; else "".

    explains: forms -> whether with them every step is the engine's
    """
    if form.answers != 1:
        return ""
    kinds = (("denoised", _of_block(form.calls)), ("slope", _of_slopes), ("latent", _of_block(0)))
    for changed in range(1, _AGES):
        for what, moved in kinds:
            for move in _moves(changed):
                for where, rows in _places(form):
                    wrong = moved(form, rows, move)
                    if wrong is not None and explains(form._replace(rows=wrong)):
                        return f"history: {_told(what, move)}{where}"
    return ""


def _moves(changed: int) -> Iterator[_Move]:
    """Yield age -> age that is read in its place, with so many of them changed."""
    for move in product(range(_AGES), repeat=_AGES):
        if sum(a != b for a, b in enumerate(move)) == changed:
            yield move


def _places(form: Forms) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the rows that a bug may change: all, those whose history is full, the last."""
    whole = np.arange(2, len(form.rows))
    used = np.array([np.count_nonzero(np.abs(row[form.calls : 2 * form.calls]) > 1e-12) for row in form.rows])
    yield "", whole
    full = whole[used[whole] == used.max()]
    if 0 < len(full) < len(whole):
        yield ", once the history is full", full
    yield ", in the last step", whole[-1:]


def _of_block(start: int) -> Callable[[Forms, np.ndarray, _Move], np.ndarray | None]:
    """Move the coefficients of one kind: of latents (from column 0), or of model outputs."""

    def moved(form: Forms, which: np.ndarray, move: _Move) -> np.ndarray | None:
        rows = form.rows.copy()
        for k in which:
            _shift(rows[k, start : start + k], form.rows[k, start : start + k], move)
        return None if np.array_equal(rows, form.rows) else rows

    return moved


def _shift(to: np.ndarray, of: np.ndarray, move: _Move) -> None:
    """Give each age's coefficient to the age that is read in its place; the oldest stands for older ones."""
    newest = len(of) - 1
    for age, read in enumerate(move):
        if age <= newest and age != read:
            to[newest - age] -= of[newest - age]
            to[newest - min(read, newest)] += of[newest - age]


def _of_slopes(form: Forms, which: np.ndarray, move: _Move) -> np.ndarray | None:
    """Move the weights of slopes (x_j - denoised_j) / sigma_j; None if a step has other terms, too."""
    rows, n = form.rows.copy(), form.calls
    if (form.sigmas <= 0).any():
        return None
    for k in which:
        weights = -form.rows[k, n : n + k] * form.sigmas[:k]
        rest = form.rows[k, :k] - weights / form.sigmas[:k]
        rest[-1] -= 1
        if np.abs(rest).max() > 1e-6:
            return None
        own = weights.copy()
        _shift(own, weights, move)
        rows[k, :k] += (own - weights) / form.sigmas[:k]
        rows[k, n : n + k] -= (own - weights) / form.sigmas[:k]
    return None if np.array_equal(rows, form.rows) else rows


def _told(what: str, move: _Move) -> str:
    pairs = [f"{_NAMES[b]} where {_NAMES[a]} belongs" for a, b in enumerate(move) if a != b]
    return f"of {what}, {' and '.join(pairs)}"
