"""The noise of sampling: from each picture's seed, added to a given picture's latent, and drawn by later steps."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.numerics.errors import BadInput
from refsd.samplers.noise import RNGS, Noise, TorchCuda
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, case, param, part


class Statistics(NamedTuple):
    """Of a latent's channels, [C, 1, 1]: with them the denoiser's latent is (latent - mean) / deviation."""

    mean: np.ndarray
    deviation: np.ndarray


# eps of FLUX.2's batch norm. Source: black-forest-labs/flux2, autoencoder.py.
_EPS = 1e-4


# torch's generator on a GPU, whose numbers depend on how many threads it runs at once.
_GPU = "torch-cuda"


def _streams(params: Params, seeds: list[int]) -> list[Noise]:
    own = params["rng"] == _GPU
    make = (lambda seed: TorchCuda(seed, params["threads"])) if own else RNGS[params["rng"]]
    return [make(seeds[0])] * len(seeds) if params["one_stream"] else [make(seed) for seed in seeds]


def _factor(sigma: float, space: str) -> float:
    return sigma / np.sqrt(sigma**2 + 1) if space == "vp" else sigma


def _signal_share(sigma: float, space: str) -> float:
    return {"ve": 1.0, "vp": 1 / np.sqrt(sigma**2 + 1), "flow": 1 - sigma}[space]


def _start(latent: np.ndarray, noise: np.ndarray, kept: float, factor: float, of: Statistics) -> np.ndarray:
    return kept * (latent - of.mean) / of.deviation + factor * noise


class NoisingRule(NamedTuple):
    """The parts of the rule.

    seed:    the first picture's seed, index in the batch -> seed of this picture
    streams: params, seeds -> a generator for each picture; a shared one draws all pictures at once
    later:   the generators, params, seeds -> generators of the steps' noise
    factor:  sigma, space -> factor of the noise
    kept:    sigma, space -> factor of a given picture's latent
    start:   latent, noise, their factors, means and deviations of the latent's channels -> the first step's latent
    """

    seed: Callable[[int, int], int] = lambda seed, b: seed + b
    streams: Callable[[Params, list[int]], list[Noise]] = _streams
    later: Callable[[list[Noise], Params, list[int]], list[Noise]] = lambda streams, params, seeds: streams
    factor: Callable[[float, str], float] = _factor
    kept: Callable[[float, str], float] = _signal_share
    start: Callable[[np.ndarray, np.ndarray, float, float, Statistics], np.ndarray] = _start


RULE = NoisingRule()


def _statistics(inputs: StageInputs) -> Statistics:
    t, one = inputs.tensors, inputs.dtype.type(1)
    if "channel_mean" not in t:
        return Statistics(np.zeros_like(one), one)
    mean, variance = (t[name][:, None, None] for name in ("channel_mean", "channel_variance"))
    return Statistics(mean, np.sqrt(variance + inputs.dtype.type(_EPS)))


def drawn(streams: list[Noise], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Draw a batch of standard normals: one picture at a time, or all at once from a shared generator."""
    if all(stream is streams[0] for stream in streams):
        return streams[0].randn((len(streams), *shape)).astype(dtype)
    return np.stack([stream.randn(shape) for stream in streams]).astype(dtype)


def _run(rule: NoisingRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p, latent = inputs.params, inputs.tensors["latent"]
    if p["rng"] == _GPU and p["threads"] < 1:
        raise BadInput(f"stage/noising: threads {p['threads']}: {_GPU} needs the number that the GPU runs at once")
    seeds = [rule.seed(p["seed"], b) for b in range(len(latent))]
    streams = rule.streams(p, seeds)
    noise = drawn(streams, latent.shape[1:], inputs.dtype)
    kept, factor = rule.kept(p["sigma"], p["space"]), rule.factor(p["sigma"], p["space"])
    start = rule.start(latent, noise, kept, factor, _statistics(inputs))
    later = rule.later(streams, p, seeds)
    draws = np.stack([drawn(later, latent.shape[1:], inputs.dtype) for _ in range(p["draws"])])
    return {"noise": noise, "start": start, "step_noise": draws}


def normal_size(inputs: StageInputs, y: np.ndarray) -> np.ndarray:
    """Return the size of Box-Muller normals, r sin v with r = sqrt(-2 ln u): a rounding of u moves r by 1 / r."""
    return 4 + np.abs(y) + np.minimum(1 / np.maximum(np.abs(y), 1e-9), 4096)


def _start_size(inputs: StageInputs, y: np.ndarray) -> np.ndarray:
    p = inputs.params
    kept, factor = _signal_share(p["sigma"], p["space"]), _factor(p["sigma"], p["space"])
    latent, of = inputs.tensors["latent"], _statistics(inputs)
    noise = (y - kept * (latent - of.mean) / of.deviation) / factor
    return kept * (np.abs(latent) + np.abs(of.mean)) / of.deviation + factor * normal_size(inputs, noise)


# --- what engines got wrong --------------------------------------------------------------------------------------


def _skipped(streams: list[Noise], count: int) -> list[Noise]:
    for stream in dict.fromkeys(streams):
        stream.randn((count,))
    return streams


class _Transposed:
    """Draws with channels last."""

    def __init__(self, of: Noise):
        self._of = of

    def randn(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.moveaxis(self._of.randn((*shape[:-3], *shape[-2:], shape[-3])), -1, -3)


def _channels_last(params: Params, seeds: list[int]) -> list[Noise]:
    right = _streams(params, seeds)
    wrapped = {id(stream): _Transposed(stream) for stream in right}
    return [wrapped[id(stream)] for stream in right]


class _Sixteen:
    """Draws 16 numbers where fewer are asked for, and returns the first of them."""

    def __init__(self, of: Noise):
        self._of = of

    def randn(self, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(shape))
        return self._of.randn((max(count, 16),))[:count].reshape(shape)


def _padded(params: Params, seeds: list[int]) -> list[Noise]:
    if params["rng"] != "cpu":
        raise NoDifference
    right = _streams(params, seeds)
    wrapped = {id(stream): _Sixteen(stream) for stream in right}
    return [wrapped[id(stream)] for stream in right]


def _other_rng(name: str):
    def streams(params: Params, seeds: list[int]) -> list[Noise]:
        if params["rng"] == name:
            raise NoDifference
        return _streams({**params, "rng": name}, seeds)

    return streams


def _mixed(change: Callable[[np.ndarray, np.ndarray, float, float, Statistics], np.ndarray]):
    """change: as NoisingRule.start, of latents whose channels have statistics"""

    def start(latent: np.ndarray, noise: np.ndarray, kept: float, factor: float, of: Statistics) -> np.ndarray:
        if not np.ndim(of.mean):
            raise NoDifference
        return change(latent, noise, kept, factor, of)

    return start


def _other_threads(change: Callable[[int], int]):
    """change: threads -> threads of another GPU"""

    def streams(params: Params, seeds: list[int]) -> list[Noise]:
        if params["rng"] != _GPU:
            raise NoDifference
        return _streams({**params, "threads": change(params["threads"])}, seeds)

    return streams


_IMAGE = ("item", "channel", "row", "column")
# 105 numbers per item: a multiple of neither 16 nor 4, the block sizes of generators.
_SHAPE = (3, 3, 5, 7)


def _normalised(label: str, space: str, sigma: float, **params):
    statistics = {
        "channel_mean": Recipe(_SHAPE[1:2], exponent=-17),
        "channel_variance": Recipe(_SHAPE[1:2], data="positive", exponent=-18, offset=0.25),
    }
    inputs = {"latent": Recipe(_SHAPE, offset=0.25), **statistics}
    return case("noising", label, inputs, space=space, sigma=sigma, **params)


def _case(label: str, space: str, sigma: float, shape: tuple[int, ...] = _SHAPE, **params):
    latent = {"latent": Recipe(shape, offset=0.25)}
    return case("noising", label, latent, space=space, sigma=sigma, **params)


STAGES = (
    Stage(
        "noising",
        "Noise of each picture's seed, a given picture's latent with it, and the noise that the steps draw then.",
        inputs={
            "latent": "[N, C, H, W]: of the given picture; the autoencoder's if its channels have statistics",
            "channel_mean?": "[C]: of FLUX.2's batch norm",
            "channel_variance?": "[C]: its eps is 1e-4",
        },
        params={
            "space": REQUIRED,
            "sigma": REQUIRED,
            "rng": "cuda",
            "seed": 42,
            "one_stream": False,
            "draws": 2,
            "threads": 0,
        },
        outputs={
            "noise": Output(_IMAGE, normal_size, 8),
            "start": Output(_IMAGE, _start_size, 12),
            "step_noise": Output(("step", *_IMAGE), normal_size, 8),
        },
        rule=RULE,
        choices={"space": ("ve", "vp", "flow"), "rng": (*RNGS, _GPU)},
        run=_run,
        known=(
            part("one seed for all", seed=lambda seed, b: seed),
            part("the next seed", seed=lambda seed, b: seed + 1 + b),
            part("a seed of 31 bits", seed=lambda seed, b: (seed + b) & 0x7FFFFFFF),
            part("no seed", seed=lambda seed, b: 0),
            part("seed 0 taken for none", seed=lambda seed, b: seed + b or 42),
            part("one stream for the batch", streams=lambda p, seeds: _streams({**p, "one_stream": True}, seeds)),
            part("a stream for each picture", streams=lambda p, seeds: _streams({**p, "one_stream": False}, seeds)),
            part("drawn with the channels last", streams=_channels_last),
            part("fewer than 16 numbers drawn as the first of 16", streams=_padded),
            part("a draw thrown away first", streams=lambda p, seeds: _skipped(_streams(p, seeds), 16)),
            part(
                "a counter for each number, however many threads the GPU has",
                streams=_other_threads(lambda threads: 1 << 30),
            ),
            part("twice the GPU's threads", streams=_other_threads(lambda threads: 2 * threads)),
            *(part(f"the generator {name}", streams=_other_rng(name)) for name in ("cuda", "cpu", "cpu_scalar")),
            part("the steps draw the first noise again", later=lambda streams, p, seeds: _streams(p, seeds)),
            part(
                "the steps draw from one generator for the batch",
                later=lambda streams, p, seeds: _streams({**p, "one_stream": True}, seeds),
            ),
            part(
                "the steps draw without a seed",
                later=lambda streams, p, seeds: _streams(p, [0] * len(seeds)),
            ),
            part(
                "the steps' noise of the next seed",
                later=lambda streams, p, seeds: _streams(p, [seed + 1 for seed in seeds]),
            ),
            part(
                "noise as of a variance-preserving model",
                kept=lambda sigma, space: _signal_share(sigma, "vp"),
                factor=lambda sigma, space: _factor(sigma, "vp"),
            ),
            part(
                "noise as of a variance-exploding model",
                kept=lambda sigma, space: 1.0,
                factor=lambda sigma, space: sigma,
            ),
            part("noise as of a flow", kept=lambda sigma, space: 1 - sigma),
            part("the picture's latent whole", kept=lambda sigma, space: 1.0),
            part("the picture left out", kept=lambda sigma, space: 0.0),
            part("noise not scaled", factor=lambda sigma, space: 1.0),
            part("noise of sqrt(sigma^2 + 1)", factor=lambda sigma, space: np.sqrt(sigma**2 + 1)),
            part("noise of sigma^2", factor=lambda sigma, space: sigma**2),
            *(
                part(name, start=_mixed(change))
                for name, change in (
                    (
                        "the noise is divided by the channels' deviation, too",
                        lambda x, noise, kept, factor, of: _start(x, noise / of.deviation, kept, factor, of),
                    ),
                    (
                        "the channels are normalised after the noise is added",
                        lambda x, noise, kept, factor, of: (kept * x + factor * noise - of.mean) / of.deviation,
                    ),
                    (
                        "the channels are not normalised",
                        lambda x, noise, kept, factor, of: kept * x + factor * noise,
                    ),
                    (
                        "the channels are normalised twice",
                        lambda x, noise, kept, factor, of: _start(
                            (x - of.mean) / of.deviation, noise, kept, factor, of
                        ),
                    ),
                )
            ),
            param("noise of the next level", sigma=lambda sigma: sigma * 0.9),
        ),
        cases=(
            _case("ve-sdcpp", "ve", 6.1),
            _case("ve-one-stream", "ve", 3.7, rng="cpu", one_stream=True),
            _case("vp-diffusers", "vp", 2.3, rng="cpu", one_stream=True, seed=1234567890123),
            # Fewer than 16 numbers a draw: torch draws them in pairs, and keeps what is left for the next draw.
            _case("flow-few", "flow", 0.35, (3, 1, 3, 5), rng="cpu", seed=5),
            _case("flow-sdcpp", "flow", 0.7, seed=(1 << 40) + 5),
            _case("flow-seed-0", "flow", 0.6, seed=0),
            _case("flow-a1111", "flow", 0.45, rng="nv", seed=7),
            _normalised("flow-normalised", "flow", 0.65, rng="cpu", seed=3),
            # 7 and 3 numbers of each thread: two counters, and one.
            _case("flow-gpu", "flow", 0.55, (2, 16, 9, 13), rng=_GPU, threads=512, one_stream=True, seed=11),
            _case("ve-gpu", "ve", 2.9, (2, 16, 7, 11), rng=_GPU, threads=512, seed=(1 << 33) + 3),
        ),
    ),
)
