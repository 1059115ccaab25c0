"""Find the generator, the seed and the draw that give an engine's noise, where others should."""

import math
from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from refsd.causes.stage.scene import Scene
from refsd.golden.judge import Answer
from refsd.samplers.noise import RNGS, Noise, TorchCuda
from refsd.stages.stage import Params

# Draws of a generator that are looked through, and numbers into its stream.
_DRAWS, _FAR = 4, 4096
# Numbers by which a draw is known again.
_KNOWN = 8
_LISTED = 3
_GPU = "torch-cuda"


def other_draws(scene: Scene) -> list[str]:
    """Return which draws stand where others belong, if the first wrong output has standard normals."""
    name, params = scene.wrong, scene.inputs.params
    if not name or "rng" not in params or "seed" not in params:
        return []
    actual, truth = (np.asarray(of[name], np.float64) for of in (scene.actual, scene.truth))
    if actual.shape != truth.shape or actual.ndim < 4:
        return []
    size = int(np.prod(actual.shape[-3:]))
    rows, right = actual.reshape(-1, size), truth.reshape(-1, size)
    wrong = np.flatnonzero(np.abs(rows - right).max(axis=1) > 1e-3)
    if size < _KNOWN or not len(wrong):
        return []
    drawn = [*_draws(params, actual.shape[-4], actual.shape[-3:])]
    first = np.stack([y[:_KNOWN] for _, y in drawn])

    def told(row: np.ndarray) -> str:
        for at in np.flatnonzero(np.isclose(first, row[:_KNOWN], rtol=1e-3, atol=1e-4).all(axis=1)):
            if np.allclose(drawn[at][1], row, rtol=1e-3, atol=1e-3):
                return drawn[at][0]
        return ""

    sources = [told(rows[i]) or _within(params, rows[i]) for i in wrong]
    axes, shape = scene.stage.outputs[name].axes, actual.shape[:-3]
    at = [zip(axes, np.unravel_index(i, shape), strict=False) for i in wrong]
    places = [", ".join(f"{axis} {int(k)}" for axis, k in one) for one in at]
    if all(sources):
        pairs = [
            f"{place} is {source}, not {told(right[i]) or 'its own'}"
            for i, place, source in zip(wrong, places, sources, strict=True)
        ]
        more = f" and {len(pairs) - _LISTED} more" if len(pairs) > _LISTED else ""
        return [f"{name}: {', '.join(pairs[:_LISTED])}{more}"]
    others = "other numbers of the same kind, of no draw that was tried: drawn with another seed, or without one"
    return [f"{_where(scene)}: {others}"] if normals(rows[wrong], right[wrong]) else []


def redrawn(scene: Scene, known: Mapping[str, Answer]) -> list[str]:
    """Return that other numbers stand in the place of the case's noise, under a known bug or without one."""
    noise = scene.inputs.tensors.get("noise", np.zeros(0))
    actual, truth = (np.asarray(of[scene.wrong], np.float64) for of in (scene.actual, scene.truth))
    answers = [(name, np.asarray(answer.get(scene.wrong, np.zeros(0)))) for name, answer in known.items()]
    for name, y in answers if actual.shape == truth.shape == noise.shape else []:
        with np.errstate(all="ignore"):
            factor = (y - truth) / noise if y.shape == truth.shape else 0 * noise
            found = (actual - truth) / factor
        told = {"noise is another draw": noise - found, f"{name}, by another draw": found}
        if (factor * factor.flat[0] > 0).all() and (named := [w for w, z in told.items() if normals(z, noise)]):
            return named
    return []


def _where(scene: Scene) -> str:
    """Name the outputs that are wrong, and the items of the first."""
    wrong = {k: ~np.isclose(scene.actual[k], y, rtol=1e-3, atol=1e-3) for k, y in scene.truth.items()}
    wrong = {name: where for name, where in wrong.items() if where.any()}
    where = next(iter(wrong.values()))
    items = np.flatnonzero(where.reshape(len(where), -1).any(axis=1))
    part = f" at {', '.join(map(str, items))} of {len(where)}" if len(items) < len(where) else ""
    return f"{', '.join(wrong)}{part}"


def normals(actual: np.ndarray, truth: np.ndarray) -> bool:
    """Return True for standard normals that are uncorrelated with the right ones."""
    sure = 4 / np.sqrt(actual.size)
    standard = all(abs(z.mean()) < sure and abs(z.std() - 1) < sure for z in (actual, truth))
    return actual.size >= 64 and standard and abs(np.corrcoef(actual.ravel(), truth.ravel())[0, 1]) <= sure


def _draws(params: Params, items: int, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (which, numbers) of each picture's draws: the case's own generator and seed first."""
    for kind, seed in _streams(params, items):
        which = f"of {kind}'s seed {seed}"
        one, batch = _made(kind, seed, params), _made(kind, seed, params)
        for draw in range(_DRAWS):
            yield f"draw {draw} {which}", one.randn(shape).ravel()
            if items > 1:
                whole = batch.randn((items, *shape)).reshape(items, -1)
                yield from ((f"item {i} of draw {draw} for the batch {which}", y) for i, y in enumerate(whole))
    size = math.prod(shape)
    for run, words in ((1, "one by one"), (shape[-1], "row by row"), (math.prod(shape[-2:]), "channel by channel")):
        for kind, seed in islice(_streams(params, items), items):
            one = _made(kind, seed, params)
            for i in range(items):
                each = [one.randn((run,)) for _ in range(size // run)]
                yield f"drawn {words} as picture {i} of {kind}'s seed {seed}", np.concatenate(each)


def _streams(params: Params, items: int) -> Iterator[tuple[str, int]]:
    own = int(params["seed"])
    others = [int(v) for k, v in params.items() if "seed" in k and isinstance(v, int)]
    seeds = [*range(own, own + items), own - 1, *range(own + items, own + 2 * items + 1), *others, 0, 1, 42]
    seeds += [own & (1 << bits) - 1 for bits in (8, 16, 31, 32)] + [own >> 32, -own, items * own]
    kinds = [*RNGS, *([_GPU] if params.get("threads") else [])]
    for kind in sorted(kinds, key=lambda kind: kind != params["rng"]):
        yield from ((kind, seed) for seed in dict.fromkeys(seeds))


def _made(kind: str, seed: int, params: Params) -> Noise:
    return TorchCuda(seed, params["threads"]) if kind == _GPU else RNGS[kind](seed)


def _within(params: Params, row: np.ndarray) -> str:
    """Say from which number of a long draw on these numbers stand."""
    for kind, seed in _streams(params, 1):
        stream = _made(kind, seed, params).randn((_FAR + row.size,)).astype(np.float64)
        at = np.flatnonzero(np.isclose(stream[:_FAR], row[0], rtol=1e-3, atol=1e-4))
        for k in at:
            if np.allclose(stream[k : k + row.size], row, rtol=1e-3, atol=1e-3):
                return f"the numbers from {k} on of {kind}'s seed {seed}"
    return ""
