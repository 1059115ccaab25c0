"""Noise with variation seeds and resized seeds, and the mix (slerp) of two noises."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.samplers.noise import RNGS
from refsd.samplers.webui_noise import A1111, SDNEXT, Shortcuts, placed, slerp
from refsd.stages.noising import normal_size
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, case, param, part

Mix = Callable[[float, np.ndarray, np.ndarray], np.ndarray]


def _seed(p: Params, i: int) -> int:
    """With a variation only the variation's seed counts up. Source: A1111 modules/processing.py."""
    return p["seed"] + (0 if p["strength"] else i)


def _inner(p: Params) -> tuple[int, int]:
    h, w = p["resize_from"] or (8 * p["shape"][2], 8 * p["shape"][3])
    return h // 8, w // 8


def _later(p: Params, i: int) -> tuple[int, int]:
    """A delta starts a new generator; without one, the seed's generator continues after its first noise."""
    return _seed(p, i) + p["seed_delta"], 0 if p["seed_delta"] else 1


class VariationRule(NamedTuple):
    """The parts of the rule.

    seed:    parameters, index in the batch -> seed
    subseed: parameters, index in the batch -> the variation's seed
    mix:     share, noise, the variation's noise -> mixed noise
    inner:   parameters -> height and width of the latent whose noise is placed in this one
    whole:   noise of that size, noise of this size -> noise of this size
    later:   parameters, index in the batch -> seed of the steps' noise, number of draws to skip first
    """

    seed: Callable[[Params, int], int] = _seed
    subseed: Callable[[Params, int], int] = lambda p, i: p["subseed"] + i
    mix: Mix = slerp
    inner: Callable[[Params], tuple[int, int]] = _inner
    whole: Callable[[np.ndarray, np.ndarray], np.ndarray] = placed
    later: Callable[[Params, int], tuple[int, int]] = _later


def _run(rule: VariationRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    N, C, H, W = p["shape"]
    rng = RNGS[p["rng"]]
    noises, steps = [], []
    for i in range(N):
        seed, inner = rule.seed(p, i), (C, *rule.inner(p))
        noise = rng(seed).randn(inner).astype(inputs.dtype)
        if p["strength"]:
            noise = rule.mix(p["strength"], noise, rng(rule.subseed(p, i)).randn(inner).astype(inputs.dtype))
        if p["resize_from"]:
            noise = rule.whole(noise, rng(seed).randn((C, H, W)).astype(inputs.dtype))
        noises.append(noise)
        later, skipped = rule.later(p, i)
        stream = rng(later)
        for _ in range(skipped):
            stream.randn((C, H, W))
        steps.append([stream.randn((C, H, W)).astype(inputs.dtype) for _ in range(p["draws"])])
    return {"noise": np.stack(noises), "step_noise": np.stack(steps).swapaxes(0, 1)}


def _mixed_size(inputs: StageInputs, y: np.ndarray) -> np.ndarray:
    """The size of both noises; errors grow where the angle between them is near 0 or pi."""
    return 64 * normal_size(inputs, y) if inputs.params["strength"] else normal_size(inputs, y)


# --- what engines got wrong --------------------------------------------------------------------------------------


def straight(share: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return ((1 - share) * low + share * high).astype(low.dtype)


def _of_variance_1(share: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return (straight(share, low, high) / np.sqrt((1 - share) ** 2 + share**2)).astype(low.dtype)


def _by_rows(share: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return slerp(share, low.swapaxes(1, 2), high.swapaxes(1, 2)).swapaxes(1, 2)


def _by_channels(share: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return slerp(share, low.swapaxes(0, 1), high.swapaxes(0, 1)).swapaxes(0, 1)


def _whole_angle(share: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Use one angle for the whole picture."""
    return slerp(share, low.reshape(1, -1, 1), high.reshape(1, -1, 1)).reshape(low.shape)


def _without_resize(change: Callable[[np.ndarray, np.ndarray], np.ndarray]):
    def whole(inner: np.ndarray, right: np.ndarray) -> np.ndarray:
        found = change(inner, right)
        if found.shape != right.shape:
            raise NoDifference
        return found

    return whole


def _in_the_corner(inner: np.ndarray, right: np.ndarray) -> np.ndarray:
    h, w = (min(a, b) for a, b in zip(inner.shape[1:], right.shape[1:], strict=True))
    y = right.copy()
    y[:, :h, :w] = inner[:, :h, :w]
    return y


def _stretched(inner: np.ndarray, right: np.ndarray) -> np.ndarray:
    rows, columns = (np.arange(n) * m // n for n, m in zip(right.shape[1:], inner.shape[1:], strict=True))
    return inner[:, rows][:, :, columns]


_MIXES = (
    ("in a straight line", straight),
    ("in a straight line, of variance 1", _of_variance_1),
    ("by the angle of rows, not of columns", _by_rows),
    ("by the angle of channels, not of columns", _by_channels),
    ("by one angle of the whole picture", _whole_angle),
)

_IMAGE = ("item", "channel", "row", "column")


def _seeds_case(label: str, shape: list[int], **params):
    return case("variation", label, shape=shape, **params)


VARIATION = Stage(
    "variation",
    "The noise of a batch with A1111's variation seeds and resized seeds, and the noise of its steps.",
    inputs={},
    params={
        "shape": REQUIRED,
        "rng": "nv",
        "seed": REQUIRED,
        "subseed": 0,
        "strength": 0.0,
        "resize_from": None,
        "seed_delta": 0,
        "draws": 2,
    },
    outputs={
        "noise": Output(_IMAGE, _mixed_size, 24),
        "step_noise": Output(("step", *_IMAGE), normal_size, 8),
    },
    rule=VariationRule(),
    choices={"rng": RNGS},
    run=_run,
    known=(
        part("the seed counts up beside the variation's", seed=lambda p, i: p["seed"] + i),
        part("the seed stays for the batch", seed=lambda p, i: p["seed"]),
        part("the variation's seed stays for the batch", subseed=lambda p, i: p["subseed"]),
        part("the variation's seed counts from the seed", subseed=lambda p, i: p["seed"] + p["subseed"] + i),
        part("seed and variation's seed swapped", seed=lambda p, i: p["subseed"], subseed=lambda p, i: p["seed"]),
        *(part(f"mixed {name}", mix=mix) for name, mix in _MIXES),
        part("the variation left out", mix=lambda share, low, high: low),
        part("the variation alone", mix=lambda share, low, high: high),
        part("shares of seed and variation exchanged", mix=lambda share, low, high: slerp(1 - share, low, high)),
        part("the other size's noise in the corner", whole=_without_resize(_in_the_corner)),
        part("the other size's noise stretched", whole=_without_resize(_stretched)),
        part("the other size left out", whole=_without_resize(lambda inner, right: right)),
        part("the other size's height and width swapped", inner=lambda p: _inner(p)[::-1]),
        part("the other size in pixels, not latents", inner=lambda p: tuple(p["resize_from"] or _inner(p))),  # type: ignore[arg-type]
        part("the delta left out", later=lambda p, i: (_seed(p, i), 1)),
        part("the delta's generator goes on behind a noise", later=lambda p, i: (_later(p, i)[0], 1)),
        part("the steps draw the first noise again", later=lambda p, i: (_later(p, i)[0], 0)),
        part("the steps' noise of the variation's seed", later=lambda p, i: (p["subseed"] + i, 1)),
        part(
            "the steps' noise begins behind those of the batch before",
            later=lambda p, i: (_later(p, i)[0], _later(p, i)[1] + p["draws"]),
        ),
        param("the variation's share squared", strength=lambda share: share**2),
    ),
    cases=(
        _seeds_case("batch", [3, 4, 5, 7], seed=11, subseed=1000, strength=0.3),
        _seeds_case("cpu", [2, 4, 6, 8], rng="cpu", seed=3, subseed=42, strength=0.75, draws=3),
        _seeds_case("resized-up", [2, 4, 9, 7], seed=5, resize_from=[40, 24]),
        _seeds_case("resized-down", [2, 4, 4, 6], seed=5, subseed=8, strength=0.4, resize_from=[64, 80]),
        _seeds_case("delta", [2, 4, 5, 7], seed=21, seed_delta=31337),
    ),
)


# --- two given noises ---------------------------------------------------------------------------------------------


_ENGINES = {"a1111": A1111, "sdnext": SDNEXT}


class MixRule(NamedTuple):
    """The parts of the rule.

    shortcuts: engine -> its shortcuts
    mix:       shortcuts -> (share, low, high -> mixed noise)
    """

    shortcuts: Callable[[str], Shortcuts] = lambda engine: _ENGINES[engine]
    mix: Callable[[Shortcuts], Mix] = lambda shortcuts: lambda share, low, high: slerp(share, low, high, shortcuts)


def _run_mix(rule: MixRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    low, p = inputs.tensors["low"], inputs.params
    mix = rule.mix(rule.shortcuts(p["engine"]))
    further = low + inputs.tensors["step"]
    return {"mixed": np.stack([mix(p["share"], a, b) for a, b in zip(low, further, strict=True)])}


def _changed(**fields) -> Callable[[str], Shortcuts]:
    def shortcuts(engine: str) -> Shortcuts:
        right = _ENGINES[engine]
        return right._replace(**{k: v(getattr(right, k)) for k, v in fields.items()})

    return shortcuts


def _mix_case(label: str, engine: str, share: float, exponent: int):
    shape = (2, 4, 6, 5)
    inputs = {"low": Recipe(shape), "step": Recipe(shape, exponent=exponent)}
    return case("slerp", label, inputs, engine=engine, share=share)


SLERP = Stage(
    "slerp",
    "Two given noises mixed as A1111 mixes a seed's and its variation's: on the sphere, or in a straight line.",
    inputs={"low": "[N, C, H, W]: the seed's", "step": "[N, C, H, W]: the variation's less the seed's"},
    params={"engine": REQUIRED, "share": REQUIRED},
    outputs={"mixed": Output(_IMAGE, lambda inputs, y: 24 * (1 + np.abs(inputs.tensors["low"])), 24)},
    rule=MixRule(),
    choices={"engine": _ENGINES},
    run=_run_mix,
    known=(
        part("shares exchanged", mix=lambda shortcuts: lambda share, a, b: slerp(1 - share, a, b, shortcuts)),
        part("shares exchanged where the two are nearly parallel", shortcuts=_changed(turned=lambda turned: True)),
        part("shares right where the two are nearly parallel", shortcuts=_changed(turned=lambda turned: False)),
        *(part(f"mixed {name}", mix=lambda shortcuts, mix=mix: mix) for name, mix in _MIXES),
        part("never in a straight line", shortcuts=_changed(parallel=lambda v: 2.0, apart=lambda v: None)),
    ),
    cases=(
        _mix_case("sphere", "a1111", 0.3, -15),
        _mix_case("parallel-a1111", "a1111", 0.3, -22),
        _mix_case("parallel-sdnext", "sdnext", 0.3, -23),
        _mix_case("sphere-sdnext", "sdnext", 0.6, -16),
    ),
)

STAGES = (VARIATION, SLERP)
