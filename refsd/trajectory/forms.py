"""A sampler as a linear form: each latent that it shows the model, in the earlier ones, the answers and the noise.

Between two calls of the model a sampler only adds multiples of arrays. Given one unit vector for each of them, it
writes its own coefficients down: no sampler is described twice.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Solver(NamedTuple):
    """
    run:     (model, x, sigmas, noise, callback) -> latents
    answers: of the model at each call: denoised, and for CFG++ also what it is without the prompt
    flow:    x = (1 - sigma) data + sigma noise, and not data + sigma noise
    opening: where a flow's solver begins instead of at 1, where nothing is left of the data; None: it begins at 1
    """

    run: Callable[..., np.ndarray]
    answers: int = 1
    flow: bool = False
    opening: float | None = None


class Forms(NamedTuple):
    """
    sigmas:  [calls], at which the model is asked
    steps:   [calls], the step that each call belongs to
    rows:    [calls + 1, (1 + answers) calls + draws]: what call k is shown, and last where the sampler ends, as
             coefficients of the latents shown to call 0, 1, ..., of the model's answers (all denoised, then all
             without the prompt), and of the noises drawn
    answers: of the model at each call
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
        """Columns before those of the noises."""
        return (1 + self.answers) * self.calls

    @property
    def draws(self) -> int:
        return self.rows.shape[1] - self.known


def forms(solver: Solver, sigmas: np.ndarray) -> Forms:
    """The linear forms of a sampler on these sigmas.

    solver: whose coefficients depend on the sigmas only (dpm_adaptive's do not)
    Raises ValueError where it calls its model, or draws, more than four times a step.
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
        # What follows is computed from what the engine showed its model, not from what it ought to have.
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
    """Forms of a solver that keeps latents of its own, and so went on from unit[0] alone, as forms of each step.

    A row is what it is of the first latents of its step, and the rest: row_k = a row_j + rest, a = row_k0 / row_j0.
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


def sensitivities(solver: Solver, sigmas: np.ndarray, delta: float = 1e-6) -> np.ndarray:
    """How the rows move with ln sigma_j: central differences. -> [positive sigmas, calls + 1, columns]

    A flow's first sigma is 1 exactly: its rows are 0, but where another stands for it.
    """
    moved = []
    for j in np.flatnonzero(sigmas > 0):
        up, down = sigmas.copy(), sigmas.copy()
        if solver.flow and sigmas[j] * (1 + delta) >= 1:
            up[j] = down[j] = solver.opening or 1.0
        if not solver.flow or up[j] < 1:
            up[j] *= 1 + delta
            down[j] *= 1 - delta
        moved.append((forms(solver, up).rows - forms(solver, down).rows) / (2 * delta))
    return np.stack(moved)
