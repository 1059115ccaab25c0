"""Brownian motion as a function of time, the same path for any steps; reproduces torchsde's BrownianTree.

SDE solvers take their noise from its increments, so that runs of 10 and of 20 steps follow the same path, and a
step can be divided. k-diffusion, A1111, Forge and ComfyUI's samplers without "_gpu" use it.
"""

import math

import numpy as np
from numpy.typing import DTypeLike

from refsd.samplers.noise import TorchAvx2
from refsd.samplers.step import StepNoise

_DIGITS = 6
_POOL = 24
_KEPT = 64  # cached increments: those of the last step's ancestors in the tree, which the next step often shares


class _Interval:
    """A node of the tree of halved intervals. Its parent's increment and seed determine its own increment."""

    left: "_Interval"
    right: "_Interval"
    seed: int

    def __init__(self, start: float, end: float, parent: "_Interval | None", is_left: bool):
        self.start, self.end = round(start, _DIGITS), round(end, _DIGITS)
        self.parent, self.is_left = parent, is_left
        self.key = 2 * parent.key + (not is_left) if parent else 0
        self.depth = parent.depth + 1 if parent else 0
        self.mid: float | None = None


class BrownianTree:
    """Brownian motion W(t) for start <= t <= end, W(start) = 0, refined by Brownian bridges on halved intervals.

        W(mid) - W(a) = (mid - a) / (b - a) (W(b) - W(a)) + sqrt((mid - a) (b - mid) / (b - a)) n

    n comes from torch's CPU generator, seeded by NumPy's SeedSequence(entropy, spawn_key = (index in the node's
    level, depth)). Times are rounded to six digits. Both follow torchsde, so that the paths agree.

    entropy: the seed
    shape, dtype: of an increment
    Error: float64 paths agree with torchsde 0.2.6 to 1e-15; float32 to the last bits of TorchAvx2's normals.
    Source: Li et al. 2020 (Scalable gradients for SDEs), section 4; torchsde BrownianTree.
    """

    def __init__(
        self, start: float, end: float, entropy: int, shape: tuple[int, ...], dtype: DTypeLike = np.float32
    ):
        self.entropy, self.shape, self.dtype = entropy, shape, np.dtype(dtype)
        self.root = _Interval(start, end, None, False)
        self.total = self._normal(self._seed()) * math.sqrt(end - start)
        self._recent: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, a: float, b: float) -> np.ndarray:
        """Compute the increment W(b) - W(a), a < b. -> [shape]"""
        parts: list[_Interval] = []
        self._cover(self.root, round(a, _DIGITS), round(b, _DIGITS), parts)
        total = self._increment(parts[0])
        for part in parts[1:]:
            total = total + self._increment(part)
        return total

    def _seed(self, *spawn_key: int) -> int:
        return int(np.random.SeedSequence(self.entropy, spawn_key=spawn_key, pool_size=_POOL).generate_state(1)[0])

    def _normal(self, seed: int) -> np.ndarray:
        return TorchAvx2(seed).randn(self.shape, self.dtype)

    def _increment(self, node: _Interval) -> np.ndarray:
        if node.parent is None:
            return self.total
        place = node.depth, node.key
        if place in self._recent:
            return self._recent[place]
        up = node.parent
        whole = self._increment(up)
        assert up.mid is not None
        left, right, reciprocal = up.mid - up.start, up.end - up.mid, 1 / (up.end - up.start)
        mean = left * whole * reciprocal
        w = mean + math.sqrt(left * right * reciprocal) * self._normal(up.seed)
        w = w if node.is_left else whole - w
        self._recent[place] = w
        if len(self._recent) > _KEPT:
            self._recent.pop(next(iter(self._recent)))
        return w

    def _cover(self, node: _Interval, a: float, b: float, parts: list[_Interval]) -> None:
        """Append to `parts` the nodes that together cover a .. b, in order; split nodes where necessary."""
        if (a, b) == (node.start, node.end):
            parts.append(node)
            return
        if node.mid is None:
            self._split(node, b if a == node.start else a)
        assert node.mid is not None
        if a < node.mid:
            self._cover(node.left, a, min(b, node.mid), parts)
        if b > node.mid:
            self._cover(node.right, max(a, node.mid), b, parts)

    def _split(self, node: _Interval, at: float) -> None:
        """Halve the node, then the half that contains `at`, until `at` is the end of an interval."""
        while True:
            middle = 0.5 * (node.end + node.start)
            node.mid = round(middle, _DIGITS)
            spawn_key = (node.key, node.depth)
            node.seed = int(
                np.random.SeedSequence(self.entropy, spawn_key=spawn_key, pool_size=_POOL).generate_state(4)[0]
            )
            node.left, node.right = (
                _Interval(node.start, middle, node, True),
                _Interval(middle, node.end, node, False),
            )
            if at == node.mid:
                return
            node = node.left if at < node.mid else node.right


def brownian_noise(x: np.ndarray, sigmas: np.ndarray, seed: int | list[int]) -> StepNoise:
    """Return a noise source: increments of a Brownian motion in sigma, scaled to unit variance.

        noise(sigma, sigma_next) = (W(b) - W(a)) / sqrt(b - a)

    x:      latents; they give the shape and dtype of the noise
    sigmas: the schedule; the motion runs from its smallest sigma above 0 to its largest
    seed:   one seed for the whole batch, or one for each item
    Source: k-diffusion sampling.py, BrownianTreeNoiseSampler.
    """
    start, end = float(sigmas[sigmas > 0].min()), float(sigmas.max())
    if isinstance(seed, int):
        trees = [BrownianTree(start, end, seed, x.shape, x.dtype)]
    else:
        trees = [BrownianTree(start, end, s, x.shape[1:], x.dtype) for s in seed]

    def noise(sigma: float, sigma_next: float) -> np.ndarray:
        low, high = min(sigma, sigma_next), max(sigma, sigma_next)
        w = [tree(low, high) for tree in trees]
        sign = (1 if sigma < sigma_next else -1) * (1 if start < end else -1)
        y = (w[0] if isinstance(seed, int) else np.stack(w)) * sign
        return y / math.sqrt(high - low)

    return noise
