"""What a cache costs: the drift of its sampling run from the run that computes every step."""

from typing import NamedTuple

import numpy as np

from refsd.caches import CacheSettings
from refsd.diagnosis.quality import relative
from refsd.diagnosis.sampling_run import Run
from refsd.module import Module


class CacheDrift(NamedTuple):
    """The drift of one cache.

    cache:  its name with all options
    reused: the steps, from 0, that took something from it
    drift:  relative L2 distance of the latent from the run without it, after each step
    """

    cache: str
    reused: tuple[int, ...]
    drift: tuple[float, ...]


def cache_drift(cache: CacheSettings, run: Run, m: Module, exact: list[np.ndarray]) -> CacheDrift:
    """Repeat a run with a cache. run: planned with it; exact: latents after each step of the run without it"""
    reused: list[int] = []

    def listener(name: str, array: np.ndarray) -> None:
        if name.endswith(".cond.reused") and array:
            reused.append(int(name.split(".")[1]))

    ours = run.latents(m, listener)
    drift = tuple(relative(x, truth) for x, truth in zip(ours, exact, strict=True))
    return CacheDrift(str(cache), tuple(reused), drift)
