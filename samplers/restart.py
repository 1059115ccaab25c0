"""Restart sampling: an ODE solver that sometimes adds noise to return to a higher sigma, and steps down again."""

import math
from typing import NamedTuple

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.levels import DiscreteLevels
from refsd.samplers.schedules import karras
from refsd.samplers.step import no_callback


class Segment(NamedTuple):
    """A restart.

    low, high: restart from the sigma nearest to low, back up to the one nearest to high
    steps:     number of sigmas on the way down again, including both ends
    times:     number of repetitions
    """

    low: float
    high: float
    steps: int
    times: int


def usual_segments(sigmas: np.ndarray) -> tuple[np.ndarray, list[Segment]]:
    """Choose restarts by A1111's rule: none below 20 steps; from 20 on nine steps once; from 36 on a quarter twice.

    The restarts' steps count towards the total, so the schedule becomes a shorter karras.
    -> the schedule, its segments
    """
    steps = len(sigmas) - 1
    if steps < 20:
        return sigmas, []
    again, times = (9, 1) if steps < 36 else (steps // 4, 2)
    sigmas = _karras(steps - again * times, float(sigmas[-2]), float(sigmas[0]))
    return sigmas, [Segment(0.1, 2.0, again + 1, times)]


def path(sigmas: np.ndarray, segments: list[Segment]) -> list[tuple[float, float]]:
    """List the steps (sigma, sigma_next) in order. A step that begins above the previous end needs noise first."""
    nearest = lambda level: int(np.argmin(np.abs(sigmas - level)))
    at = {nearest(segment.low): segment for segment in segments}
    steps = []
    for i in range(len(sigmas) - 1):
        steps.append((float(sigmas[i]), float(sigmas[i + 1])))
        segment = at.get(i + 1)
        if segment and nearest(segment.high) < i + 1:
            down = _karras(segment.steps, float(sigmas[i + 1]), float(sigmas[nearest(segment.high)]))[:-1]
            steps += list(zip(down[:-1].tolist(), down[1:].tolist(), strict=True)) * segment.times
    return steps


@sampler
def restart(model, x, sigmas, noise, callback=no_callback, s_noise=1.0, segments: list[Segment] | None = None):
    """Sample with Heun's method along `path`; a restart sets x <- x + sqrt(high^2 - low^2) s_noise n.

    sigmas:   [n + 1], falling; a step to 0 is an Euler step
    noise:    called once a restart
    segments: None: those of usual_segments, which also replaces the schedule
    Source: Xu et al. 2023 (Restart sampling), algorithm 1; A1111 and Forge modules/sd_samplers_extra.py.
    """
    if segments is None:
        sigmas, segments = usual_segments(sigmas)
    last = float(sigmas[0])
    for i, (sigma, sigma_next) in enumerate(path(sigmas, segments)):
        if sigma > last:
            x = x + noise(last, sigma) * (s_noise * math.sqrt(sigma**2 - last**2))
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        dt = sigma_next - sigma
        if sigma_next == 0:
            x = x + d * dt
        else:
            x_2 = x + d * dt
            denoised_2 = model(x_2, sigma_next)
            d_2 = (x_2 - denoised_2) / sigma_next
            d_prime = (d + d_2) / 2
            x = x + d_prime * dt
        last = sigma_next
    return x


def _karras(n: int, low: float, high: float) -> np.ndarray:
    return karras(n, DiscreteLevels(np.array([low, high])))
