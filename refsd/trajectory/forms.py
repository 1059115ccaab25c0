"""Derive a sampler's linear form: its coefficients on earlier latents, model outputs and noise.

Between two model calls a sampler only computes linear combinations of arrays. If each model output and each noise
is a different unit vector, the next latent that the sampler passes to the model is the vector of its coefficients.
So the coefficients come from the sampler's own code and need no second description.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_DELTA = 1e-6  # by which `sensitivities` moves ln sigma


class Solver(NamedTuple):
    """A sampler and the model that it expects.

    run:     (model, x, sigmas, noise, callback) -> latents
    answers: model outputs at each call: 1 (denoised), or 2 for CFG++ (also denoised without the prompt)
    flow:    True for x = (1 - sigma) data + sigma noise, False for x = data + sigma noise
    opening: sigma with which a flow's solver replaces a first sigma of 1, where x has no signal; None: it keeps 1
    """

    run: Callable[..., np.ndarray]
    answers: int = 1
    flow: bool = False
    opening: float | None = None


class Forms(NamedTuple):
    """A sampler's coefficients on given sigmas.

    sigmas:  [calls], sigma of each model call
    steps:   [calls], the step of each call
    rows:    [calls + 1, (1 + answers) calls + draws]: row k has the coefficients of the latent that call k
             receives, the last row those of the final latent. Columns: the latents of calls 0, 1, ...; the model
             outputs (all denoised, then all denoised without the prompt); the drawn noises
    answers: model outputs at each call
    """

    sigmas: np.ndarray
    steps: np.ndarray
    rows: np.ndarray
    answers: int = 1

    @property
    def calls(self) -> int:
        return len(self.sigmas)

    @property
    def known(self) -> int:
        """Number of columns before those of the noises."""
        return (1 + self.answers) * self.calls

    @property
    def draws(self) -> int:
        return self.rows.shape[1] - self.known


def forms(solver: Solver, sigmas: np.ndarray) -> Forms:
    """Derive the linear forms of a sampler on these sigmas.

    solver: its coefficients must depend on the sigmas only (those of dpm_adaptive do not)
    Raises ValueError for more than four model calls or noise draws per step, on average.
    """
    most, blocks = 4 * len(sigmas), 1 + solver.answers
    unit = np.eye((blocks + 1) * most).reshape((blocks + 1) * most, 1, 1, 1, -1)
    shown: list[np.ndarray] = []
    call_sigmas: list[float] = []
    first_calls: list[int] = []
    draws = 0

    def model(x: np.ndarray, sigma: float):
        k = len(shown)
        if k == most:
            raise ValueError(f"a sampler calls its model more than {most} times")
        shown.append(x.ravel().copy())
        call_sigmas.append(sigma)
        # Restart from a unit vector: later latents are expressed by this latent, as the engine computed it.
        x[...] = unit[k]
        answers = tuple(unit[block * most + k].copy() for block in range(1, blocks))
        return answers if solver.answers > 1 else answers[0]

    def noise(sigma: float, sigma_next: float) -> np.ndarray:
        nonlocal draws
        if draws == most:
            raise ValueError(f"a sampler draws more than {most} times")
        draws += 1
        return unit[blocks * most + draws - 1].copy()

    def callback(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        first_calls.append(len(shown) - 1)

    end = solver.run(model, unit[0].copy(), sigmas, noise, callback)
    calls = len(shown)
    kept = [block * most + k for block in range(blocks) for k in range(calls)]
    kept += range(blocks * most, blocks * most + draws)
    steps = np.searchsorted(first_calls, np.arange(calls), side="right") - 1
    rows = np.stack([*shown, end.ravel()])[:, kept]
    if calls > 1 and not rows[2:, 1:calls].any():
        rows = _from_each_step(rows, steps)
    return Forms(np.array(call_sigmas), steps, rows, solver.answers)


def _from_each_step(rows: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Rewrite the forms of a solver that keeps its own copy of x, so that they start from each step's first latent.

    Each row is expressed by the latent at the start of its step: row_k = a row_j + rest, a = row_k0 / row_j0.
    """
    local = rows.copy()
    for k in range(1, len(rows)):
        j = int(np.flatnonzero(steps == steps[k - 1])[0])
        if j > 0 and rows[j, 0] != 0:
            a = rows[k, 0] / rows[j, 0]
            local[k] = rows[k] - a * rows[j]
            local[k, 0] = 0.0
            local[k, j] += a
    return local


def sensitivities(solver: Solver, sigmas: np.ndarray) -> np.ndarray:
    """Differentiate the rows by ln sigma_j: central differences. -> [positive sigmas, calls + 1, columns]

    For a flow's first sigma of exactly 1 the derivative is 0, unless the solver replaces it by `opening`.
    """
    moved = []
    for j in np.flatnonzero(sigmas > 0):
        up, down = sigmas.copy(), sigmas.copy()
        if solver.flow and sigmas[j] * (1 + _DELTA) >= 1:
            up[j] = down[j] = solver.opening or 1.0
        if not solver.flow or up[j] < 1:
            up[j] *= 1 + _DELTA
            down[j] *= 1 - _DELTA
        moved.append((forms(solver, up).rows - forms(solver, down).rows) / (2 * _DELTA))
    return np.stack(moved)
