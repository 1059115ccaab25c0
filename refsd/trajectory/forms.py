"""A sampler as a linear form: each latent that it shows the model, in the earlier ones, the answers and the noise.

Between two calls of the model a sampler only adds multiples of arrays. Given one unit vector for each of them, it
writes its own coefficients down: no sampler is described twice.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# (model, x, sigmas, noise, callback) -> latents
Run = Callable[..., np.ndarray]


class Forms(NamedTuple):
    """
    sigmas: [calls], at which the model is asked
    steps:  [calls], the step that each call belongs to
    rows:   [calls + 1, 2 calls + draws]: what call k is shown, and last where the sampler ends, as coefficients of
            the latents shown to call 0, 1, ..., the model's answers, and the noises drawn
    """

    sigmas: np.ndarray
    steps: np.ndarray
    rows: np.ndarray

    @property
    def calls(self) -> int:
        return len(self.sigmas)

    @property
    def draws(self) -> int:
        return self.rows.shape[1] - 2 * self.calls


def forms(run: Run, sigmas: np.ndarray) -> Forms:
    """The linear forms of a sampler on these sigmas.

    run: a sampler whose coefficients depend on the sigmas only (dpm_adaptive's do not)
    Raises ValueError where it calls its model, or draws, more than four times a step.
    """
    most = 4 * len(sigmas)
    unit = np.eye(3 * most).reshape(3 * most, 1, 1, 1, 3 * most)
    shown: list[np.ndarray] = []
    asked: list[float] = []
    first_calls: list[int] = []
    draws = 0

    def model(x: np.ndarray, sigma: float) -> np.ndarray:
        k = len(shown)
        if k == most:
            raise ValueError(f"a sampler calls its model more than {most} times")
        shown.append(x.ravel().copy())
        asked.append(sigma)
        # What follows is computed from what the engine showed its model, not from what it ought to have.
        x[...] = unit[k]
        return unit[most + k].copy()

    def noise(sigma: float, sigma_next: float) -> np.ndarray:
        nonlocal draws
        if draws == most:
            raise ValueError(f"a sampler draws more than {most} times")
        draws += 1
        return unit[2 * most + draws - 1].copy()

    def callback(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        first_calls.append(len(shown) - 1)

    end = run(model, unit[0].copy(), sigmas, noise, callback)
    calls = len(shown)
    kept = [*range(calls), *range(most, most + calls), *range(2 * most, 2 * most + draws)]
    steps = np.searchsorted(first_calls, np.arange(calls), side="right") - 1
    return Forms(np.array(asked), steps, np.stack([*shown, end.ravel()])[:, kept])


def sensitivities(run: Run, sigmas: np.ndarray, delta: float = 1e-6) -> np.ndarray:
    """How the rows move with ln sigma_j: central differences. -> [positive sigmas, calls + 1, columns]"""
    moved = []
    for j in np.flatnonzero(sigmas > 0):
        up, down = sigmas.copy(), sigmas.copy()
        up[j] *= 1 + delta
        down[j] *= 1 - delta
        moved.append((forms(run, up).rows - forms(run, down).rows) / (2 * delta))
    return np.stack(moved)
