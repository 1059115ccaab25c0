"""The noise levels of a run and the timesteps that the network receives: levels, schedule, img2img truncation."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions import CARDS
from refsd.conventions.sampling import Card, Truncation, fewer, fewer_rounded_up, from_the_end, stretched
from refsd.numerics.errors import BadInput
from refsd.samplers.betas import linear, scaled_linear
from refsd.samplers.levels import (
    DiscreteLevels,
    EdmLevels,
    FlowLevels,
    Levels,
    NearestLevels,
    shift_snr,
    training_sigmas,
    zero_terminal_snr,
)
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import (
    FLOW_SCHEDULES,
    TERMINAL,
    flow_terminal,
    flow_uniform,
    flux2_mu,
    flux_mu,
    ltx2,
    qwen_image_mu,
)
from refsd.stages.sigma_cases import CASES, LOWEST, ZERO
from refsd.stages.stage import REQUIRED, NoDifference, Output, Params, Stage, StageInputs, Tensors, param, part

# flow-10000: FLUX.1's and Qwen-Image's in ComfyUI
_LEVELS = "sd", "sd-zero-snr", "flow", "flow-10000", "flux", "flux-schnell", "flux2", "qwen-image", "edm"


def _mu(levels: str, tokens: int, steps: int) -> float:
    flux = {"flux": flux_mu(tokens), "flux-schnell": 0.0, "flux2": flux2_mu(tokens, steps)}
    rows = {**flux, "qwen-image": qwen_image_mu(tokens)}
    return rows[levels]


def _spacing(params: Params, card: Card, levels: Levels, name: str | None = None) -> Callable[[int], np.ndarray]:
    name = name or params["schedule"]
    rules: dict[str, Any] = {**SCHEDULES, **FLOW_SCHEDULES, **card.rules(levels)}
    rules["flow_terminal"] = lambda n, levels, terminal=TERMINAL: (
        flow_terminal(n, levels.shift, terminal) if terminal else flow_uniform(n, levels.shift)
    )
    shifts = card.engine == "diffusers" and isinstance(levels, FlowLevels)
    rules["given"] = lambda n, levels, sigmas: shift_snr(np.array(sigmas), levels.shift if shifts else 1.0)
    rules["ltx2"] = lambda n, levels, tokens=4096, terminal=0.1: ltx2(n, tokens, terminal)
    if name not in rules:
        raise BadInput(f"stage/sigmas: schedule {name!r}: expected one of {', '.join(rules)}")
    rule = rules[name]
    return lambda n: rule(n, levels, **(params["options"] if name == params["schedule"] else {}))


def _last(which: str, levels: Levels) -> float | None:
    if which == ZERO:
        return None
    if which != LOWEST or not isinstance(levels, DiscreteLevels):
        raise BadInput(f"stage/sigmas: last {which!r}: expected {ZERO!r}, or {LOWEST!r} of trained levels")
    return float(levels.sigmas[0])


class SigmaRule(NamedTuple):
    """The parts of the rule.

    betas:     trained steps, first, last -> betas
    kept:      betas -> cumulative products of 1 - beta: share of the signal after each step
    zero_snr:  these shares -> shares with zero terminal SNR
    no_signal: engine -> replaces a final share of 0
    flow:      shift, multiplier -> levels of a rectified flow
    mu:        name of levels, tokens, steps -> logarithm of the shift
    edm:       -> levels of EDM
    to_t:      levels, sigma -> timestep that the network receives
    spacing:   params, card, levels -> (steps -> sigmas)
    last:      "zero" or "lowest", levels -> the last sigma; None: the schedule's own, 0
    ending:    sigmas -> sigmas; bugs change how the schedule ends
    share:     card, levels -> how strength truncates the schedule
    """

    betas: Callable[[int, float, float], np.ndarray] = scaled_linear
    kept: Callable[[np.ndarray], np.ndarray] = lambda betas: np.cumprod(1 - betas)
    zero_snr: Callable[[np.ndarray], np.ndarray] = zero_terminal_snr
    no_signal: Callable[[str], float] = lambda engine: CARDS[engine].no_signal
    flow: Callable[[float, float], Levels] = FlowLevels
    mu: Callable[[str, int, int], float] = _mu
    edm: Callable[[], Levels] = EdmLevels
    to_t: Callable[[Levels, float], float] = lambda levels, sigma: levels.to_t(sigma)
    spacing: Callable[[Params, Card, Levels], Callable[[int], np.ndarray]] = _spacing
    last: Callable[[str, Levels], float | None] = _last
    ending: Callable[[np.ndarray], np.ndarray] = lambda sigmas: sigmas
    share: Callable[[Card, Levels], Truncation] = lambda card, levels: card.truncation_of(levels)


RULE = SigmaRule()


def levels_of(rule: SigmaRule, params: Params) -> Levels:
    kind, card = params["levels"], CARDS[params["engine"]]
    if kind not in _LEVELS:
        raise BadInput(f"stage/sigmas: levels {kind!r}: expected one of {', '.join(_LEVELS)}")
    if kind == "flow":
        return rule.flow(params["shift"], 1000.0)
    if kind == "flow-10000":
        levels = rule.flow(params["shift"], 1.0)
        return FlowLevels(levels.shift, levels.multiplier, 10000) if isinstance(levels, FlowLevels) else levels
    if kind in ("flux", "flux-schnell", "flux2", "qwen-image"):
        return rule.flow(math.exp(rule.mu(kind, params["tokens"], params["steps"])), 1.0)
    if kind == "edm":
        return rule.edm()
    kept = rule.kept(rule.betas(1000, 0.00085, 0.012))
    if kind == "sd-zero-snr":
        kept = rule.zero_snr(kept)
        if kept[-1] == 0:
            kept = np.append(kept[:-1], rule.no_signal(card.engine))
    return card.levels(training_sigmas(kept))


def _run(rule: SigmaRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    params = inputs.params
    card, levels = CARDS[params["engine"]], levels_of(rule, params)
    spacing = rule.spacing(params, card, levels)
    last = rule.last(params["last"], levels)
    schedule = lambda n: rule.ending(spacing(n) if last is None else np.append(spacing(n)[:-1], last))
    steps, strength = params["steps"], params["strength"]
    sigmas = schedule(steps) if strength == 1 else rule.share(card, levels)(steps, strength, schedule)
    # Sigma 0 has no timestep; only a bug gets here with it.
    return {"sigmas": sigmas, "timesteps": np.array([rule.to_t(levels, s) if s > 0 else 0.0 for s in sigmas[:-1]])}


def _size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """The share is a product of 1000 factors; zero SNR subtracts its last root, about 1 / 14.6, so errors grow."""
    return truth * (1 + truth / 14.6) if inputs.params["levels"] == "sd-zero-snr" else truth


def timestep_size(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """Return the size of timesteps: dt = d ln sigma / slope; the trained levels' slope is at least 1/300."""
    kind = inputs.params["levels"]
    if kind.startswith("sd"):
        return np.maximum(np.abs(truth), 300 * (1 + (truth > 900) * 300 * (kind == "sd-zero-snr")))
    return np.abs(truth) + (kind == "edm")


def _other_range(inputs: StageInputs, actual: Tensors, truth: Tensors, bounds: Mapping[str, float]) -> list[str]:
    """Name the range of a schedule between its own highest and lowest level, if these two give all others."""
    params, found, right = inputs.params, actual.get("sigmas"), truth["sigmas"]
    if not params["levels"].startswith("sd") or found is None or found.shape != right.shape:
        return []
    ends = [sigmas[sigmas > 0][[0, -1]] for sigmas in (found, right) if (sigmas > 0).sum() > 2]
    if len(ends) < 2 or params["strength"] != 1 or not np.isfinite(found).all() or ends[0][0] <= ends[0][1]:
        return []
    (high, low), (right_high, right_low) = ends
    card = CARDS[params["engine"]]
    other = _spacing(params, card, card.levels(np.geomspace(low, high, 1000)))(params["steps"])
    near = 4 * bounds["sigmas"] * max(1.0, high / right_high)
    if (
        other.shape != found.shape
        or (np.abs(other - found)[other > 0] > near).any()
        or (found[other == 0] > 0).any()
    ):
        return []
    return [f"the sigmas range from {high:.6g} to {low:.6g}, not from {right_high:.6g} to {right_low:.6g}"]


# --- what engines got wrong --------------------------------------------------------------------------------------


class _TwoTooHigh(FlowLevels):
    """Level i is that of i + 2: 1 is added twice."""

    def to_sigma(self, t):
        return shift_snr((np.asarray(t, np.float64) + 2) / self.steps, self.shift)


class _NoneAdded(FlowLevels):
    def to_sigma(self, t):
        return shift_snr(np.asarray(t, np.float64) / self.steps, self.shift)


class _EdmOfThousandths(EdmLevels):
    """exp(4 t / 1000): not the inverse of t = ln(sigma) / 4."""

    def __init__(self):
        super().__init__()
        self.sigmas = np.exp(4 * np.arange(1000) / 1000)


def _nearest(levels: Levels, sigma: float) -> float:
    return NearestLevels(levels.sigmas).to_t(sigma) if isinstance(levels, DiscreteLevels) else levels.to_t(sigma)


def _between(levels: Levels, sigma: float) -> float:
    real = isinstance(levels, NearestLevels)
    return DiscreteLevels(levels.sigmas).to_t(sigma) if real else levels.to_t(sigma)


def _before_the_shift(levels: Levels, sigma: float) -> float:
    shift = levels.shift if isinstance(levels, FlowLevels) else 1.0
    return levels.to_t(sigma / (shift - (shift - 1) * sigma))


def _linear_in_sigma(levels: Levels, sigma: float) -> float:
    if not isinstance(levels, DiscreteLevels):
        return levels.to_t(sigma)
    return float(np.interp(sigma, levels.sigmas, np.arange(len(levels.sigmas))))


def _computed_as(name: str) -> Callable:
    def spacing(params: Params, card: Card, levels: Levels) -> Callable[[int], np.ndarray]:
        if name in FLOW_SCHEDULES and not isinstance(levels, FlowLevels):
            raise NoDifference
        return _spacing(params, card, levels, name)

    return spacing


def _redundant_zero(params: Params, card: Card, levels: Levels) -> Callable[[int], np.ndarray]:
    """The levels of one step fewer, then 0 twice."""
    right = _spacing(params, card, levels)
    return lambda n: np.append(right(n - 1) if n > 1 else right(n)[:-1], 0.0)


def _unshifted_linspace(params: Params, card: Card, levels: Levels) -> Callable[[int], np.ndarray]:
    """Space evenly from 1 to the unshifted 1 / 1000, then shift."""
    if not isinstance(levels, FlowLevels):
        raise NoDifference
    return lambda n: np.append(shift_snr(np.linspace(1, 1 / levels.steps, n), levels.shift), 0.0)


def _given_shifted(params: Params, card: Card, levels: Levels) -> Callable[[int], np.ndarray]:
    if params["schedule"] != "given" or not isinstance(levels, FlowLevels):
        raise NoDifference
    right = _spacing(params, card, levels)
    return lambda n: shift_snr(right(n), levels.shift)


def _whole_strides(params: Params, card: Card, levels: Levels) -> Callable[[int], np.ndarray]:
    """Timesteps of 1000 and downwards, a whole number apart, are looked up in the table of 1000 levels."""
    if not isinstance(levels, FlowLevels):
        raise NoDifference

    def sigmas(n: int) -> np.ndarray:
        t = levels.steps - np.arange(n) * round(levels.steps / n)
        return np.append(levels.to_sigma(np.clip(t, 0, levels.steps - 1)), 0.0)

    return sigmas


def _discarding(params: Params, card: Card, levels: Levels) -> Callable[[int], np.ndarray]:
    right = _spacing(params, card, levels)
    return lambda n: np.append(right(n + 1)[:-2], right(n + 1)[-1])


def _to_the_lowest(which: str, levels: Levels) -> float:
    if not isinstance(levels, DiscreteLevels):
        raise NoDifference
    return float(levels.sigmas[0])


def _of_one_more(kept: slice) -> Callable:
    """The list for one step more, of which an end is cut off."""
    return lambda params, card, levels: lambda n: _spacing(params, card, levels)(n + 1)[kept]


def _option(name: str, key: str, value: Any):
    def changed(options: dict[str, Any]) -> dict[str, Any]:
        return {**options, key: value} if key in options else options

    return param(name, options=changed)


_KNOWN = (
    part("betas evenly spaced, not their roots", betas=linear),
    part("signal kept in float16", kept=lambda x: np.cumprod(1 - x).astype(np.float16).astype(np.float64)),
    part("signal kept before each step, not after it", kept=lambda betas: np.cumprod(1 - betas) / (1 - betas)[-1]),
    part("zero terminal SNR left out", zero_snr=lambda kept: kept),
    part("another number for no signal", no_signal=lambda engine: 1e-6),
    part("flow levels of i + 2", flow=_TwoTooHigh),
    part("flow levels of i", flow=_NoneAdded),
    part("a flow's time of 0 to 1", flow=lambda shift, multiplier: FlowLevels(shift, 1.0)),
    part("a flow's time of 0 to 1000", flow=lambda shift, multiplier: FlowLevels(shift, 1000.0)),
    part("no shift", flow=lambda shift, multiplier: FlowLevels(1.0, multiplier)),
    *(
        part(
            f"shift {shift:g} at every size",
            flow=lambda right, multiplier, shift=shift: FlowLevels(shift, multiplier),
        )
        for shift in (1.15, 1.5, 3.0, 3.1, 5.0, 6.0)
    ),
    part("shifted twice", flow=lambda shift, multiplier: FlowLevels(shift**2, multiplier)),
    part("shifted towards the picture", flow=lambda shift, multiplier: FlowLevels(1 / shift, multiplier)),
    part("shift taken for its logarithm", flow=lambda shift, multiplier: FlowLevels(math.exp(shift), multiplier)),
    part(
        "logarithm taken for the shift",
        flow=lambda shift, multiplier: FlowLevels(abs(math.log(shift)) or 1.0, multiplier),
    ),
    part("the shift of 4096 tokens for any size", mu=lambda kind, tokens, steps: _mu(kind, 4096, steps)),
    part("tokens of latent pixels, not of patches", mu=lambda kind, tokens, steps: _mu(kind, 4 * tokens, steps)),
    part("base and maximal shift swapped", mu=lambda kind, tokens, steps: flux_mu(tokens, 1.15, 0.5)),
    part("the shift of another Flux", mu=lambda kind, n, s: flux2_mu(n, s) if kind == "flux" else flux_mu(n)),
    part("the shift of one step more", mu=lambda kind, tokens, steps: _mu(kind, tokens, steps + 1)),
    part("EDM levels exp(4 t / 1000)", edm=_EdmOfThousandths),
    part("EDM levels of 0.02 to 80", edm=lambda: EdmLevels(0.02, 80.0)),
    part("nearest trained timestep, not a real one", to_t=_nearest),
    part("real timestep, not the nearest trained", to_t=_between),
    part("timestep linear in sigma", to_t=_linear_in_sigma),
    part("timesteps of the levels before the shift", to_t=_before_the_shift),
    part("timestep one too high", to_t=lambda levels, sigma: levels.to_t(sigma) + 1),
    part("timestep one too low", to_t=lambda levels, sigma: levels.to_t(sigma) - 1),
    part("timestep 1 - t", to_t=lambda levels, sigma: 1 - levels.to_t(sigma)),
    part("ln sigma, not a quarter of it", to_t=lambda levels, sigma: 4 * levels.to_t(sigma)),
    part("a redundant last step to 0", spacing=_redundant_zero),
    part("given sigmas are shifted again", spacing=_given_shifted),
    part("an unshifted linspace is shifted", spacing=_unshifted_linspace),
    part("a flow's timesteps a whole number apart, from 1000 on down", spacing=_whole_strides),
    part("the last sigma above 0 left out", spacing=_discarding),
    part("the list for one step more, without its last level", spacing=_of_one_more(slice(-1))),
    part("the list for one step more, without its first level", spacing=_of_one_more(slice(1, None))),
    *(
        part(f"computed as {name}", spacing=_computed_as(name))
        for name in (
            *("discrete", "karras", "exponential", "sgm_uniform", "simple", "ddim_uniform", "leading", "trailing"),
            *("linspace", "linspace_multistep", "leading_multistep", "beta", "beta_of_sigma", "flow_uniform"),
            *("flow_linspace", "flow_sgm_uniform", "flow_below_one", "flow_terminal"),
        )
    ),
    part("ends at the lowest trained level, not at 0", last=_to_the_lowest),
    part("ends at 0, not at the lowest trained level", last=lambda which, levels: 0.0),
    part("ends at the lowest sigma, not 0", ending=lambda sigmas: np.append(sigmas[:-1], sigmas[-2])),
    part("no 0 at the end", ending=lambda sigmas: sigmas[:-1]),
    *(
        part(f"a given picture's share as {name}", share=lambda card, levels, rule=rule: rule)
        for name, rule in (
            ("A1111's", from_the_end),
            ("ComfyUI's", stretched),
            ("diffusers'", fewer),
            ("diffusers' of flows", fewer_rounded_up),
        )
    ),
    part("all steps whatever the strength", share=lambda card, levels: lambda steps, strength, of: of(steps)),
    part(
        "strength times steps rounded to the nearest",
        share=lambda card, levels: lambda steps, strength, of: of(steps)[steps - round(steps * strength) :],
    ),
    part(
        "1 - strength of the steps",
        share=lambda card, levels: lambda steps, strength, of: card.truncation(steps, 1 - strength, of),
    ),
    param("one step less", steps=lambda n: n - 1),
    _option("steps_offset missing", "offset", 0),
    _option("rho 5", "rho", 5.0),
    _option("alpha and beta of 1", "alpha", 1.0),
    _option("no terminal stretch", "terminal", None),
)


STAGES = (
    Stage(
        "sigmas",
        "The noise levels that a model is run at, and what it is told of each.",
        inputs={},
        params={
            "engine": "k-diffusion",
            "levels": REQUIRED,
            "schedule": REQUIRED,
            "steps": REQUIRED,
            "strength": 1.0,
            "shift": 3.0,
            "tokens": 4096,
            "options": {},
            "last": ZERO,
        },
        outputs={"sigmas": Output(("step",), _size, 1200), "timesteps": Output(("step",), timestep_size, 1200)},
        rule=RULE,
        run=_run,
        known=_KNOWN,
        cases=CASES,
        blames=_other_range,
    ),
)
