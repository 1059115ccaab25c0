"""The network calls of a solver that starts from a given picture: levels, timesteps, order of each step."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.conventions import CARDS
from refsd.conventions.sampling import (
    Truncation,
    fewer,
    fewer_rounded_up,
    from_the_end,
    from_the_end_sdcpp,
    stretched,
    without_penultimate,
)
from refsd.numerics.errors import BadInput
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.schedules import SCHEDULES, Schedule
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, param, part

_SOLVERS = "heun", "dpm2", "dpm++2m"
_SPACINGS = "leading", "trailing", "linspace", "leading_multistep", "linspace_multistep", "discrete", "karras"


def _calls(solver: str) -> Callable[[np.ndarray], np.ndarray]:
    """Heun's second call is at the step's end, DPM2's at its geometric middle; the last step has one call."""

    def of(sigmas: np.ndarray) -> np.ndarray:
        levels = sigmas[:-1]
        if solver == "dpm++2m":
            return levels
        second = levels[1:] if solver == "heun" else np.sqrt(levels[:-1] * levels[1:])
        both = np.empty(2 * len(levels) - 1)
        both[::2], both[1::2] = levels, second
        return both

    return of


def _lowered(i: int, steps: int) -> bool:
    """The first step has no predecessor, and the last goes to 0: both are of first order."""
    return i in (0, steps - 1)


def _whole(engine: str, solver: str, schedule: Schedule) -> Schedule:
    return without_penultimate(schedule) if solver in CARDS[engine].discarding else schedule


class CallsRule(NamedTuple):
    """The parts of the rule.

    whole:   engine, solver, schedule -> the schedule that the engine takes with this solver
    share:   engine -> how strength truncates the schedule
    calls:   solver -> (sigmas of the steps -> sigmas of the calls)
    index:   skipped steps, calls per step -> index of the first call in the whole schedule
    made:    sigmas of the remaining calls -> sigmas of the calls that are made
    begin:   sigmas of all calls, index of the first -> level to which the picture is noised
    lowered: step, number of steps -> True if the multistep solver's step is of first order
    """

    whole: Callable[[str, str, Schedule], Schedule] = _whole
    share: Callable[[str], Truncation] = lambda engine: CARDS[engine].truncation
    calls: Callable[[str], Callable[[np.ndarray], np.ndarray]] = _calls
    index: Callable[[int, int], int] = lambda steps, each: steps * each
    made: Callable[[np.ndarray], np.ndarray] = lambda calls: calls
    begin: Callable[[np.ndarray, int], float] = lambda calls, first: float(calls[first])
    lowered: Callable[[int, int], bool] = _lowered


def _run(rule: CallsRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    spacing = rule.whole(p["engine"], p["solver"], SCHEDULES[p["spacing"]])
    whole = np.empty(0)

    def schedule(n: int) -> np.ndarray:
        nonlocal whole
        whole = spacing(n, SD_LEVELS)
        return whole

    left = rule.share(p["engine"])(p["steps"], p["strength"], schedule)
    if len(left) < 2:
        raise BadInput(f"stage/calls: strength {p['strength']}: no step is left of {p['steps']}")
    every = rule.calls(p["solver"])(whole)
    first = rule.index(len(whole) - len(left), 1 if len(every) < len(whole) else 2)
    if not 0 <= first < len(every):
        raise NoDifference
    calls = rule.made(every[first:])
    found = {
        "sigmas": calls,
        "timesteps": np.array([SD_LEVELS.to_t(float(sigma)) for sigma in calls]),
        "begin": np.array([rule.begin(every, first)]),
    }
    if p["solver"] == "dpm++2m":
        steps = len(left) - 1
        found["order"] = np.array([1 if rule.lowered(i, steps) else 2 for i in range(steps)])
    return found


def _timestep_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """A timestep is off by up to 300 times the error of ln sigma, which rises by 1/300 a timestep or more."""
    return np.maximum(np.abs(truth), 300)


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    return np.abs(truth)


# --- what engines got wrong --------------------------------------------------------------------------------------


def _of_share(change: Callable[[int, float], int]):
    """change: steps, strength -> number of remaining steps"""
    return lambda engine: lambda steps, strength, of: of(steps)[steps - min(change(steps, strength), steps) :]


def _begin_beside(by: int) -> Callable[[np.ndarray, int], float]:
    """Begin `by` levels later."""

    def begin(calls: np.ndarray, first: int) -> float:
        levels = np.unique(calls)[::-1]
        at = int(np.flatnonzero(levels == calls[first])[0]) + by
        if not 0 <= at < len(levels):
            raise NoDifference
        return float(levels[at])

    return begin


def _trained_beside(by: int) -> Callable[[np.ndarray, int], float]:
    """Begin `by` trained timesteps above the first call's."""

    def begin(calls: np.ndarray, first: int) -> float:
        t = SD_LEVELS.to_t(float(calls[first])) + by
        if not 0 <= t <= len(SD_LEVELS.sigmas) - 1:
            raise NoDifference
        return float(SD_LEVELS.to_sigma(t))

    return begin


def _second_of(other: str):
    def calls(solver: str):
        if solver == "dpm++2m":
            raise NoDifference
        return _calls(other)

    return calls


def _middles(solver: str):
    if solver != "dpm2":
        raise NoDifference

    def of(sigmas: np.ndarray) -> np.ndarray:
        calls = _calls(solver)(sigmas)
        calls[1::2] = (calls[:-1:2] + calls[2::2]) / 2
        return calls

    return of


_KNOWN = (
    *(
        part(f"a given picture's share as {name}", share=lambda engine, rule=rule: rule)
        for name, rule in (
            ("A1111's", from_the_end),
            ("stable-diffusion.cpp's", from_the_end_sdcpp),
            ("ComfyUI's", stretched),
            ("diffusers'", fewer),
            ("diffusers' of flows", fewer_rounded_up),
        )
    ),
    part("the last sigma above 0 kept", whole=lambda engine, solver, schedule: schedule),
    part("the last sigma above 0 left out", whole=lambda engine, solver, schedule: without_penultimate(schedule)),
    part("all steps whatever the strength", share=lambda engine: lambda steps, strength, of: of(steps)),
    part("1 - strength of the steps", share=_of_share(lambda n, s: max(int(n * (1 - s)), 1))),
    part("the share rounded to the nearest step", share=_of_share(lambda n, s: max(round(n * s), 1))),
    part("one step more", share=_of_share(lambda n, s: int(n * s) + 1)),
    part("one step less", share=_of_share(lambda n, s: max(int(n * s) - 1, 1))),
    part("steps left out are counted in calls", index=lambda steps, each: steps),
    part("begins a call late", index=lambda steps, each: steps * each + 1),
    part("begins a call early", index=lambda steps, each: steps * each - 1),
    part("the first call twice", made=lambda calls: np.append(calls[0], calls)),
    part("the last step has two calls, too", made=lambda calls: np.append(calls, calls[-1])),
    part("the second call where Heun's is", calls=_second_of("heun")),
    part("the second call where DPM2's is", calls=_second_of("dpm2")),
    part("one call a step", calls=lambda solver: _calls("dpm++2m")),
    part("two calls in a step's arithmetic middle", calls=_middles),
    part("the picture noised to the level before", begin=_begin_beside(-1)),
    part("the picture noised to the level after", begin=_begin_beside(1)),
    part("the picture noised to the trained timestep above", begin=_trained_beside(1)),
    part("the picture noised to the trained timestep below", begin=_trained_beside(-1)),
    part("the picture noised to the highest level", begin=lambda calls, first: float(calls[0])),
    part("the first step of second order", lowered=lambda i, n: i == n - 1),
    part("the last step of second order", lowered=lambda i, n: i == 0),
    part("all steps of first order", lowered=lambda i, n: True),
    param("a step less in the whole", steps=lambda steps: steps - 1),
)


def _case(label: str, engine: str, solver: str, spacing: str, steps: int, strength: float):
    return case("calls", label, engine=engine, solver=solver, spacing=spacing, steps=steps, strength=strength)


STAGES = (
    Stage(
        "calls",
        "The network's calls of a solver that goes on from a given picture: their levels, the level to which the "
        "picture is noised, and the order of each step of a multistep solver.",
        inputs={},
        params={
            "engine": REQUIRED,
            "solver": REQUIRED,
            "spacing": REQUIRED,
            "steps": REQUIRED,
            "strength": REQUIRED,
        },
        outputs={
            "sigmas": Output(("call",), _size, 1200),
            "timesteps": Output(("call",), _timestep_size, 1200),
            "begin": Output(("picture",), _size, 1200),
            "order": Output(("step",)),
        },
        rule=CallsRule(),
        choices={"engine": CARDS, "solver": _SOLVERS, "spacing": _SPACINGS},
        run=_run,
        known=_KNOWN,
        cases=(
            _case("heun-diffusers-n7", "diffusers", "heun", "linspace", 7, 0.6),
            _case("heun-diffusers-n10", "diffusers", "heun", "trailing", 10, 0.55),
            _case("heun-a1111-n9", "a1111", "heun", "karras", 9, 0.5),
            _case("dpm2-sdcpp-n8", "sdcpp", "dpm2", "discrete", 8, 0.7),
            _case("dpm2-comfyui-n5", "comfyui", "dpm2", "karras", 5, 0.45),
            _case("dpmpp2m-diffusers-n12", "diffusers", "dpm++2m", "linspace_multistep", 12, 0.45),
            _case("dpmpp2m-diffusers-n30", "diffusers", "dpm++2m", "leading_multistep", 30, 0.65),
            _case("dpmpp2m-sdcpp-n9", "sdcpp", "dpm++2m", "discrete", 9, 0.75),
        ),
    ),
)
