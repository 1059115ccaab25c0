"""DDIM's and DDPM's steps: next timestep, signal kept, noise put back; and prompts that switch on the way."""

import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES
from refsd.stages.stage import REQUIRED, Output, Stage, StageInputs, case, param, part

_T = len(SD_LEVELS.sigmas)
_KEPT = 1 / (1 + SD_LEVELS.sigmas**2)
_SPACINGS = "leading", "trailing", "linspace_multistep"


def _variance(least: np.ndarray, most: np.ndarray, share: float | None) -> np.ndarray:
    """Interpolate between the logarithms. Source: Nichol & Dhariwal 2021, eq. 15."""
    if share is None:
        return least
    # `least` is 0 at the last step; diffusers clamps it to 1e-20.
    return np.exp(share * np.log(most) + (1 - share) * np.log(np.maximum(least, 1e-20)))


class StepRule(NamedTuple):
    """The parts of the rule. kept: share of the signal (alpha-bar); previous: where a step goes, as in diffusers.

    own:       timesteps -> timesteps whose share of the signal holds before the step
    previous:  timesteps, steps -> timestep to which each step goes; -1: to the picture
    kept_at:   timesteps, previous timesteps -> timesteps whose share of the signal holds after the step
    final:     share of the signal at -1
    least:     kept, kept at the previous timestep -> variance of the posterior
    most:      the same -> variance of the whole step
    variance:  least, most, share -> learned variance between them
    put_back:  eta, variance -> deviation of the noise that is put back
    around:    timesteps, previous timesteps -> timestep of the noised picture that is put around a mask
    """

    own: Callable[[np.ndarray], np.ndarray] = lambda t: t
    previous: Callable[[np.ndarray, int], np.ndarray] = lambda t, steps: np.append(t[1:], -1)
    kept_at: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda t, previous: previous
    final: float = 1.0
    least: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda kept, before: (
        (1 - before) / (1 - kept) * (1 - kept / before)
    )
    most: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda kept, before: 1 - kept / before
    variance: Callable[[np.ndarray, np.ndarray, float | None], np.ndarray] = _variance
    put_back: Callable[[float, np.ndarray], np.ndarray] = lambda eta, variance: eta * np.sqrt(variance)
    around: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda t, previous: previous


RULE = StepRule()


def _run(rule: StepRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    sigmas = SCHEDULES[p["spacing"]](p["steps"], SD_LEVELS)[:-1]
    t = np.array([round(SD_LEVELS.to_t(sigma)) for sigma in sigmas])
    previous = rule.previous(t, p["steps"])
    kept, before = (
        np.where(at < 0, rule.final, _KEPT[np.clip(at, 0, _T - 1)])
        for at in (rule.own(t), rule.kept_at(t, previous))
    )
    variance = rule.variance(rule.least(kept, before), rule.most(kept, before), p["share"])
    around = rule.around(t, previous)
    noised = np.where(around < 0, 0.0, SD_LEVELS.sigmas[np.clip(around, 0, _T - 1)])
    return {
        "timesteps": t,
        "previous": previous,
        "kept": kept,
        "kept_before": before,
        "deviation": rule.put_back(p["eta"], variance),
        "mask_sigma": noised,
    }


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """Differences of products of 1000 factors; the share is 1 - 0.00085 at the lowest level, so they cancel."""
    return np.abs(truth) * 1000


def _linear(least: np.ndarray, most: np.ndarray, share: float | None) -> np.ndarray:
    return least if share is None else share * most + (1 - share) * least


def _rounded_up(number: str, steps: int) -> int:
    return min(steps, math.ceil(float(number) * steps if "." in number else float(number)))


def _case(label: str, spacing: str, steps: int, **params):
    return case("steps", label, spacing=spacing, steps=steps, **params)


STEPS = Stage(
    "steps",
    "Where each step goes, what it keeps of the signal, and the noise that it puts back, of DDIM and DDPM.",
    inputs={},
    params={"spacing": REQUIRED, "steps": REQUIRED, "eta": 1.0, "share": None},
    outputs={
        "timesteps": Output(("step",)),
        "previous": Output(("step",)),
        "kept": Output(("step",), lambda inputs, truth: np.abs(truth), 1200),
        "kept_before": Output(("step",), lambda inputs, truth: np.abs(truth), 1200),
        "deviation": Output(("step",), _size, 12),
        "mask_sigma": Output(("step",), _size, 12),
    },
    rule=RULE,
    choices={"spacing": _SPACINGS},
    run=_run,
    known=(
        part("each goes T / steps down", previous=lambda t, steps: np.maximum(t - _T // steps, -1)),
        part("each goes one down", previous=lambda t, steps: t - 1),
        part("each keeps as of the trained step below", kept_at=lambda t, previous: t - 1),
        *(
            part(
                f"shares of the signal are the trained step's {words}",
                own=moved,
                kept_at=lambda t, to, m=moved: m(to),
            )
            for words, moved in (("below", lambda t: t - 1), ("above", lambda t: t + 1))
        ),
        part("the last goes to timestep 0", previous=lambda t, steps: np.append(t[1:], 0)),
        part("the lowest level kept at the end", final=float(_KEPT[0])),
        part("the posterior's variance whole", least=RULE.most),
        part("the trained step's beta", most=lambda kept, before: 1 - kept),
        part("a learned variance linear", variance=_linear),
        part("the learned share inverted", variance=lambda a, b, share: _variance(a, b, share and 1 - share)),
        part("a learned variance left out", variance=lambda low, high, share: low),
        part("variance for the deviation", put_back=lambda eta, variance: eta * variance),
        part("eta 1", put_back=lambda eta, variance: np.sqrt(variance)),
        part("eta squared", put_back=lambda eta, variance: eta**2 * np.sqrt(variance)),
        part("noise put back without eta", put_back=lambda eta, variance: 0 * variance),
        part("noised around the mask at the first level", around=lambda t, previous: np.full_like(t, t[0])),
        part("noised around the mask at the step's own level", around=lambda t, previous: t),
        param("one step less", steps=lambda steps: steps - 1),
    ),
    cases=(
        _case("leading-n7", "leading", 7),
        _case("trailing-n6", "trailing", 6, eta=0.7),
        _case("linspace-n9", "linspace_multistep", 9, eta=0.5),
        _case("learned-n6", "trailing", 6, share=0.3),
    ),
)


# --- prompts that switch on the way ------------------------------------------------------------------------------


_SWITCH = re.compile(r"\[([^:\]]*):([^:\]]*):\s*([.\d]+)\s*\]")


class SwitchRule(NamedTuple):
    """The parts of the rule. Steps are counted from 1.

    when:  the number as written, steps -> last step with the first prompt
    first: step, when -> True if the step has the first prompt
    steps: steps, calls per step -> number of steps to which a fraction refers
    at:    index of a call, calls per step -> its step
    """

    # Source: A1111 modules/prompt_parser.py, collect_steps and at_step.
    when: Callable[[str, int], int] = lambda number, steps: min(
        steps, int(float(number) * steps if "." in number else float(number))
    )
    first: Callable[[int, int], bool] = lambda step, when: step <= when
    steps: Callable[[int, int], int] = lambda steps, calls: steps
    at: Callable[[int, int], int] = lambda call, calls: call // calls + 1


def _prompts(rule: SwitchRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    found = _SWITCH.findall(p["prompt"])
    if not found:
        raise BadInput(f"stage/prompt_switch: {p['prompt']!r}: expected [first:second:when] in it")
    calls = p["calls"]
    # The last step of a two-call solver goes to 0, and has one call.
    total = p["steps"] * calls - (calls - 1)
    whens = [rule.when(number, rule.steps(p["steps"], calls)) for _, _, number in found]
    return {"second": np.array([[not rule.first(rule.at(i, calls), when) for when in whens] for i in range(total)])}


def _switch_case(label: str, prompt: str, steps: int, calls: int):
    return case("prompt_switch", label, prompt=prompt, steps=steps, calls=calls)


PROMPT_SWITCH = Stage(
    "prompt_switch",
    "For each call of the network, whether each [first:second:when] of a prompt is its second.",
    inputs={},
    params={"prompt": REQUIRED, "steps": REQUIRED, "calls": 1},
    outputs={"second": Output(("call", "bracket"))},
    rule=SwitchRule(),
    run=_prompts,
    known=(
        part("steps counted in calls", at=lambda call, calls: call + 1),
        part("a fraction of twice the steps", steps=lambda steps, calls: 2 * steps),
        part("a fraction of the calls", steps=lambda steps, calls: steps * calls),
        part("the switch a step early", first=lambda step, when: step < when),
        part("the switch a step late", first=lambda step, when: step <= when + 1),
        part(
            "whole numbers taken for fractions", when=lambda number, steps: min(steps, int(float(number) * steps))
        ),
        part("fractions taken for whole numbers", when=lambda number, steps: min(steps, int(float(number)))),
        part("fractions rounded up", when=_rounded_up),
        part("no switch", first=lambda step, when: True),
        part("the second prompt throughout", first=lambda step, when: False),
    ),
    cases=(
        _switch_case("fraction-n7", "a [cat:dog:0.5] on a mat", 7, 1),
        _switch_case("fraction-n7-two-calls", "a [cat:dog:0.5] on a [red:blue:0.25] mat", 7, 2),
        _switch_case("steps-n9-two-calls", "a [cat:dog:3] on a [:big:0.8] mat", 9, 2),
    ),
)

STAGES = (STEPS, PROMPT_SWITCH)
