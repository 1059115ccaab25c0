"""A cache at a denoiser's calls: for one picture, whichever place of the network it replaces."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from refsd.caches import CacheSettings
from refsd.caches.cache import Call, Place, Steps
from refsd.caches.stack import CachedStack
from refsd.components import COMPONENTS
from refsd.numerics.errors import BadInput
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.samplers.levels import Levels

if TYPE_CHECKING:
    from refsd.pipelines.noise_levels import NoiseLevels
    from refsd.pipelines.settings import Settings


class CachedNetwork:
    """The network's calls of one picture. reused: True if the last call took something from the cache"""

    def __init__(self, network: LoadedComponent, cache: CacheSettings, sigmas: np.ndarray, levels: Levels):
        last = len(levels.sigmas) - 1
        self.cache = cache.start(Steps(sigmas, lambda share: float(levels.to_sigma((1 - share) * last))))
        self.module, self.stack = network.module, COMPONENTS[network.name].stack
        self.reused = False

    def output(self, condition: str, step: int, x: np.ndarray, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the network's output for x under a condition. compute: calls the network"""
        if self.cache.place is Place.NETWORK:
            call = Call(condition, step, x, x)
            y = self.cache.reuse(call)
            self.reused = y is not None
            if y is None:
                y = compute()
                self.cache.keep(call, y)
            return y
        assert self.stack is not None
        taps = CachedStack(self.cache, self.stack, self.module, condition, step)
        before, self.module.taps = self.module.taps, taps
        try:
            return compute()
        finally:
            self.module.taps, self.reused = before, taps.answer is not None


def check_cache(
    network: LoadedComponent, settings: "Settings", images: ConditioningImages, noise: "NoiseLevels", title: str
) -> None:
    """Raise BadInput for a cache that this model or sampler cannot have.

    title: of the model
    """
    cache, stack = settings.cache, COMPONENTS[network.name].stack
    assert cache is not None
    where, place = f"--cache-mode {cache.name}", cache.kind.place
    if place is not Place.NETWORK and stack is None:
        raise BadInput(f"{where}: {title} has no stack of blocks that refsd skips; take easycache or taylorseer")
    if place is Place.MODULATED and (stack is None or not stack.modulated):
        raise BadInput(f"{where}: refsd knows the modulated input of FLUX.1's first block alone")
    if place is not Place.NETWORK and images.control is not None:
        raise BadInput(f"{where}: a ControlNet joins the blocks that it skips; take easycache or taylorseer")
    table = cache.kind.measured
    if table and network.name != "flux" and cache.options[table] == cache.kind.options[table].default:
        raise BadInput(
            f"{where}: its table was measured on FLUX.1; give {title}'s: --cache-option {table}=1/1.1/..."
        )
    if settings.guidance_rule.skips:
        raise BadInput(f"{where}: skip-layer guidance calls the network once more in a step; leave one of them out")
    calls = _calls(noise)
    if calls != len(noise.sigmas) - 1:
        raise BadInput(
            f"{where}: {noise.method.name} calls the network {calls} times in {len(noise.sigmas) - 1} steps, and a "
            "cache counts one call a step; take euler, dpm++2m, ..."
        )


def _calls(noise: "NoiseLevels") -> int:
    """Count the sampler's calls of the network on these noise levels."""
    count = 0

    def network(x: np.ndarray, sigma: float):
        nonlocal count
        count += 1
        return (x, x) if noise.method.cfg_pp else x

    still = lambda sigma, sigma_next: np.zeros((1, 1, 1, 1))
    noise.method.run(network, np.ones((1, 1, 1, 1)), noise.sigmas, still, None)
    return count
