"""ControlNets in a batch: the steps at which they act, each entry's picture, and what they add at each layer."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.samplers.levels import SD_LEVELS
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, magnitude, param, part

_MODES = "balanced", "guess", "soft"


def _whole_step(i: int, steps: int, start: float, end: float) -> bool:
    """True if the whole step lies in the window.

    Source: diffusers StableDiffusionControlNetPipeline, controlnet_keep.
    """
    return not (i / steps < start or (i + 1) / steps > end)


def _beginning(i: int, steps: int, start: float, end: float) -> bool:
    """True if the step begins in the window. Source: sd-webui-controlnet scripts/hook.py, guidance_stopped."""
    return start <= i / steps <= end


def _by_level(i: int, steps: int, start: float, end: float) -> bool:
    """True if the step's sigma lies in the window, which is one of timesteps; steps go evenly from 999 to 0.

    Source: ComfyUI comfy/controlnet.py, ControlBase.pre_run; model_sampling.percent_to_sigma.
    """
    sigma = SD_LEVELS.to_sigma(999 - 999 * i / max(steps - 1, 1))
    first, last = (
        SD_LEVELS.to_sigma(999 * (1 - share)) if 0 < share < 1 else (np.inf if share <= 0 else 0.0)
        for share in (start, end)
    )
    return bool(last <= sigma <= first)


def _always(i: int, steps: int, start: float, end: float) -> bool:
    """stable-diffusion.cpp has no window."""
    return True


ENGINES = {"diffusers": _whole_step, "a1111": _beginning, "comfyui": _by_level, "sdcpp": _always}


def _hints(pictures: np.ndarray, prompts: int, each: int) -> np.ndarray:
    """Repeat one picture for all, or one for each prompt. Source: diffusers prepare_image, repeat_interleave."""
    return np.repeat(pictures, prompts * each if len(pictures) == 1 else each, axis=0)


def _layers(mode: str, count: int, scale: float) -> np.ndarray:
    """Return the factor of each layer.

    Sources: diffusers ControlNetModel.forward, guess_mode; sd-webui-controlnet hook.py, soft_injection.
    """
    i = np.arange(count)
    shares = {"guess": 10.0 ** (i / (count - 1) - 1), "soft": 0.825 ** (count - 1.0 - i)}
    return scale * shares.get(mode, np.ones(count))


def _halves(y: np.ndarray, mode: str) -> np.ndarray:
    return y[len(y) // 2 :] if mode == "guess" else y


class ControlRule(NamedTuple):
    """The parts of the rule. A batch has two halves: N entries without the prompt, then N with it.

    acts:    engine -> (step, steps, start, end -> True if the ControlNet acts at this step)
    hints:   pictures, number of prompts, images per prompt -> picture of each entry of one half
    texts:   texts of one half, images per prompt -> text of each entry
    layers:  mode, number of layers, scale -> factor of each layer
    unasked: residuals with the prompt -> residuals without it, if the ControlNet ran only with the prompt
    halves:  [2 N, ...], mode -> the entries on which the ControlNet runs
    told:    texts of both halves, mode -> texts that it receives
    shown:   pictures of both halves, mode -> pictures that it receives
    scale:   strength -> factor
    """

    acts: Callable[[str], Callable[[int, int, float, float], bool]] = lambda engine: ENGINES[engine]
    hints: Callable[[np.ndarray, int, int], np.ndarray] = _hints
    texts: Callable[[np.ndarray, int], np.ndarray] = lambda text, each: np.repeat(text, each, axis=0)
    layers: Callable[[str, int, float], np.ndarray] = _layers
    unasked: Callable[[np.ndarray], np.ndarray] = np.zeros_like
    halves: Callable[[np.ndarray, str], np.ndarray] = _halves
    told: Callable[[np.ndarray, str], np.ndarray] = _halves
    shown: Callable[[np.ndarray, str], np.ndarray] = _halves
    scale: Callable[[float], float] = lambda strength: strength


RULE = ControlRule()


def _run(rule: ControlRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    t, p = inputs.tensors, inputs.params
    acts, steps, scale = rule.acts(p["engine"]), p["steps"], rule.scale(p["strength"])
    keep = np.array([scale * acts(i, steps, p["start"], p["end"]) for i in range(steps)])
    prompts = len(t["text"]) // 2
    hints = rule.hints(t["hint"], prompts, p["each"])
    both = np.concatenate([hints, hints])
    text = np.concatenate([rule.texts(half, p["each"]) for half in np.split(t["text"], 2)])
    run = rule.halves(t["residual"].swapaxes(0, 1), p["mode"]).swapaxes(0, 1)
    factors = rule.layers(p["mode"], len(run), scale).astype(inputs.dtype)
    added = run * factors[:, None, None, None, None]
    if added.shape[1] < len(text):
        added = np.concatenate([rule.unasked(added), added], axis=1)
    return {
        "keep": keep,
        "hint": rule.shown(both, p["mode"]),
        "text": rule.told(text, p["mode"]),
        "added": added,
    }


# --- what engines got wrong --------------------------------------------------------------------------------------


def _in_turn(pictures: np.ndarray, prompts: int, each: int) -> np.ndarray:
    return pictures[np.arange(prompts * each) % len(pictures)]


def _other_layers(change: Callable[[np.ndarray, float], np.ndarray]):
    return lambda mode, count, scale: change(_layers(mode, count, scale), scale)


def _first_half(y: np.ndarray, mode: str) -> np.ndarray:
    if mode != "guess":
        raise NoDifference
    return y[: len(y) // 2]


def _both(y: np.ndarray, mode: str) -> np.ndarray:
    if mode != "guess":
        raise NoDifference
    return y


def _edge(change: Callable[[int, int, float, float], bool]):
    return lambda engine: change


def _open(engine: str):
    """The window's ends lie outside it."""
    ends = {
        "diffusers": lambda i, n, a, b: a < i / n and (i + 1) / n < b,
        "a1111": lambda i, n, a, b: a < i / n < b,
    }
    if engine not in ends:
        raise NoDifference
    return ends[engine]


def _swapped(y: np.ndarray, mode: str) -> np.ndarray:
    return _halves(np.roll(y, len(y) // 2, axis=0), mode)


_KNOWN = (
    *(part(f"the window as of {name}", acts=_edge(rule)) for name, rule in ENGINES.items() if name != "sdcpp"),
    part("no window", acts=_edge(_always)),
    part("the window's start left out", acts=lambda engine: lambda i, n, a, b: ENGINES[engine](i, n, 0.0, b)),
    part("the window's end left out", acts=lambda engine: lambda i, n, a, b: ENGINES[engine](i, n, a, 1.0)),
    part("the window's ends lie outside it", acts=_open),
    part("the window of steps counted from 1", acts=lambda e: lambda i, n, a, b: ENGINES[e](i + 1, n, a, b)),
    part("the window from its other end", acts=lambda e: lambda i, n, a, b: ENGINES[e](n - 1 - i, n, a, b)),
    part("acts outside the window", acts=lambda e: lambda i, n, a, b: not ENGINES[e](i, n, a, b)),
    part("never acts", acts=_edge(lambda i, n, a, b: False)),
    part("pictures in turn, not in a row", hints=_in_turn),
    part("the first picture for all", hints=lambda y, prompts, each: _hints(y[:1], prompts, each)),
    part("texts in turn, not in a row", texts=lambda text, each: np.concatenate([text] * each)),
    part("layers weigh the same", layers=lambda mode, count, scale: np.full(count, scale)),
    part("layers weigh from the other end", layers=_other_layers(lambda f, s: f[::-1].copy())),
    part("the middle block not scaled", layers=_other_layers(lambda f, s: np.append(f[:-1], 1.0))),
    part("the middle block alone scaled", layers=_other_layers(lambda f, s: np.append(f[:-1] / s, f[-1]))),
    *(
        part(f"layers weigh as those of {other}", layers=lambda m, n, s, other=other: _layers(m, other, s)[:n])
        for other in (10, 13, 19, 24)
    ),
    part("strength left out of the layers' weights", layers=_other_layers(lambda f, s: f / s)),
    part("layers weigh as for guessing", layers=lambda mode, count, scale: _layers("guess", count, scale)),
    part("layers weigh softly", layers=lambda mode, count, scale: _layers("soft", count, scale)),
    part("guessing's weights from 0 to 1", layers=lambda m, n, s: _other_guess(m, n, s, np.arange(n) / (n - 1))),
    part("strength 1", scale=lambda strength: 1.0),
    part("strength squared", scale=lambda strength: strength**2),
    part("the same added without the prompt", unasked=lambda added: added),
    part("run on both halves where one is asked for", halves=_both, told=_both, shown=_both),
    part("ControlNet gets cond and uncond text although only one half is run", told=_both),
    part("shown the pictures of both halves where it is run on one", shown=_both),
    part("run on the half without the prompt", halves=_first_half, told=_first_half, shown=_first_half),
    part("told the texts without the prompt", told=_first_half),
    part("halves with the prompt and without swapped", halves=_swapped, told=_swapped, shown=_swapped),
    param("one step less", steps=lambda steps: steps - 1),
)


def _other_guess(mode: str, count: int, scale: float, shares: np.ndarray) -> np.ndarray:
    if mode != "guess":
        raise NoDifference
    return scale * shares


_SMALL = (3, 5)


def _case(label: str, engine: str, pictures: int, prompts: int, each: int, mode: str = "balanced", **params):
    entries = 2 * prompts * each
    inputs = {
        "hint": Recipe((pictures, 3, 16, 24), exponent=-18, offset=0.5),
        "residual": Recipe((5, entries, 4, *_SMALL)),
        "text": Recipe((2 * prompts, 6)),
    }
    return case("control", label, inputs, engine=engine, each=each, mode=mode, **params)


_IMAGE = ("item", "channel", "row", "column")
STAGES = (
    Stage(
        "control",
        "A ControlNet in a guided batch: its strength at each step, the picture and text of each entry that it is "
        "run on, and what it adds at each layer. The batch: all entries without the prompt, then all with it.",
        inputs={
            "hint": "[1 or prompts, 3, H, W]: the pictures",
            "residual": "[layers, 2 N, C, h, w]: the network's answers at strength 1, the middle block's last",
            "text": "[2 prompts, E]: without each prompt, then with it",
        },
        params={
            "engine": REQUIRED,
            "mode": "balanced",
            "steps": 10,
            "start": 0.0,
            "end": 1.0,
            "strength": 0.9,
            "each": 1,
        },
        outputs={
            "keep": Output(("step",), magnitude, 4),
            "hint": Output(_IMAGE, magnitude, 4),
            "text": Output(("item", "channel"), magnitude, 1),
            "added": Output(("layer", *_IMAGE), magnitude, 8),
        },
        rule=RULE,
        choices={"engine": ENGINES, "mode": _MODES},
        run=_run,
        known=_KNOWN,
        cases=(
            _case("diffusers-window", "diffusers", 2, 2, 2, steps=10, start=0.25, end=0.75, strength=0.7),
            _case("diffusers-one-picture", "diffusers", 1, 3, 1, steps=7, start=0.3, end=0.9, strength=1.25),
            _case("diffusers-guess", "diffusers", 2, 2, 2, "guess", steps=9, end=0.6, strength=0.8),
            _case("a1111-soft", "a1111", 2, 2, 1, "soft", steps=11, start=0.2, end=0.55, strength=0.6),
            _case("diffusers-on-steps", "diffusers", 1, 2, 1, steps=8, start=0.25, end=0.75, strength=0.55),
            _case("a1111-on-steps", "a1111", 1, 1, 2, steps=8, start=0.125, end=0.5, strength=1.1),
            _case("comfyui-window", "comfyui", 1, 2, 2, steps=8, start=0.15, end=0.65, strength=0.85),
            _case("sdcpp", "sdcpp", 1, 1, 1, steps=6, strength=0.45),
        ),
    ),
)
