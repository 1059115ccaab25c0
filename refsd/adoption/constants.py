"""Find what a pipeline does between its networks, among the rules that stages know, from one run of it.

The numbers come from the configs of its folder and from the request; the run decides which rule they belong to. A
scale that is not given there is fitted.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from refsd.adoption.noise_levels import case_of
from refsd.adoption.pipelines import Answer, Recorded, Step
from refsd.golden.case import Case
from refsd.models.vae_flux2 import pack
from refsd.numerics.errors import BadInput
from refsd.samplers.guidance import guide, rescale
from refsd.samplers.parameterization import PREDICTIONS
from refsd.stages import STAGES
from refsd.stages.latents import sizes
from refsd.stages.prediction import TIMES
from refsd.stages.stage import OP, case

# By how much of its largest number a float32 run may be off a rule.
_NEAR = 1e-4
_DECODE = ".decode"
_TIMESTEPS = "timestep", "timesteps", "t"
_PREDICTIONS = {"epsilon": "eps", "v_prediction": "v", "sample": "x0", "flow_prediction": "flow"}


def cases_of(name: str, run: Recorded) -> tuple[list[Case], dict[str, str]]:
    """Return cases of stages, and what has none -> why. name: of the cases"""
    found, refused = [], {}
    for what, find in _FINDERS.items():
        try:
            found += [one for one in (find(name, run),) if one is not None]
        except BadInput as error:
            refused[what] = str(error)
    return found, refused


def _levels(name: str, run: Recorded) -> Case:
    return case_of(name, run.sigmas, run.timesteps)


# --- from the last latent to the decoder -------------------------------------------------------------------------


class _Scale(NamedTuple):
    """z / factor + shift; with means and spreads z spread / factor + mean.

    params: of the stage
    back:   z -> the latent
    """

    params: Mapping[str, Any]
    back: Callable[[np.ndarray], np.ndarray]


def _latents(name: str, run: Recorded) -> Case | None:
    """Find how the decoder's input is made of the last latent; both may lie in memory in another order."""
    decode = next((key for key in run.calls if key.endswith(_DECODE)), None)
    if decode is None or not run.steps:
        return None
    module, _, given = run.calls[decode]
    z = _array(next(x for x in _tensors(given) if x.ndim > 2))
    x, config = _array(run.steps[-1].latent), dict(getattr(module, "config", {}))
    for scale in (*_scales(module, config), *_fitted(x, z)):
        if _same(scale.back(z), x):
            packed = scale.params.get("family") == "flux2"
            inputs = sizes(4 * z.shape[1] if packed else z.shape[1], packed)
            return case("latents", name, inputs, **scale.params)
    numbers = [f"{k} {config[k]:g}" for k in ("scaling_factor", "shift_factor") if config.get(k) is not None]
    known = ", ".join(numbers) or "no factor"
    raise BadInput(f"{decode} is not given the last latent, scaled ({known} in its config)")


def _scales(module: Any, config: Mapping[str, Any]) -> Iterator[_Scale]:
    factor, shift = config.get("scaling_factor") or 1.0, config.get("shift_factor") or 0.0
    means, spreads = config.get("latents_mean"), config.get("latents_std")
    if means is not None and spreads is not None:
        for by in dict.fromkeys((1.0, factor)):
            yield _by_channel("", list(means), list(spreads), by)
    yield _plain(factor, shift)
    norm = getattr(module, "bn", None)
    if norm is not None:
        mean, variance = (_array(x).tolist() for x in (norm.running_mean, norm.running_var))
        yield _by_channel("flux2", mean, variance, None)
    yield _plain(1.0, 0.0)


def _plain(factor: float, shift: float) -> _Scale:
    return _Scale({"factor": factor, "shift": shift}, lambda z: (z - shift) * factor)


def _by_channel(family: str, means: list[float], spreads: list[float], factor: float | None) -> _Scale:
    def back(z: np.ndarray) -> np.ndarray:
        z = pack(z) if family else z
        if z.shape[1] != len(means):
            return z
        of = (1, -1, *(1,) * (z.ndim - 2))
        mean, spread = (np.reshape(y, of) for y in (means, spreads))
        return (z - mean) / (np.sqrt(spread + 1e-4) if family else spread / (factor or 1.0))

    params = {"family": family} if family else {"factor": factor}
    return _Scale({**params, "means": means, "spreads": spreads}, back)


def _fitted(x: np.ndarray, z: np.ndarray) -> Iterator[_Scale]:
    """Yield the scale and shift that the pipeline's own code may hold."""
    if x.size == z.size and np.ptp(x) and np.ptp(z):
        (slope, shift), *_ = np.linalg.lstsq(
            np.stack([np.sort(x, None), np.ones(x.size)], axis=1), np.sort(z, None), rcond=None
        )
        yield _plain(float(f"{1 / slope:.5g}"), round(float(shift), 5))


# --- from the latent to the network, and from its answer to the sampler ------------------------------------------


def _prediction(name: str, run: Recorded) -> Case | None:
    if not run.steps or len(run.sigmas) < 2:
        return None
    step, sigma = run.steps[0], float(run.sigmas[0])
    answer, config = _answers(run)[0], run.scheduler.config
    flows = "Flow" in type(run.scheduler).__name__
    kind = "flow" if flows else _PREDICTIONS.get(config.get("prediction_type", "epsilon"))
    if kind is None:
        raise BadInput(f"prediction_type {config['prediction_type']!r} of {type(run.scheduler).__name__}")
    sign = _fit(run).sign
    if sign < 0 and kind != "flow":
        raise BadInput(f"{answer.name}'s answer has the other sign")
    x, c_in = _array(step.sample), PREDICTIONS[kind].scalings(sigma)[2]
    # Without sigmas, as DDIM's, the sampler's latent is scaled already.
    wanted = x * (c_in if hasattr(run.scheduler, "sigmas") else 1.0)
    if not any(_repeats(np.concatenate(ys), wanted) for ys in map(_floats, answer.call.values()) if ys):
        raise BadInput(f"none of {answer.name}'s arguments is the latent times {c_in:.6g}")
    time = next((answer.call[key] for key in _TIMESTEPS if answer.call.get(key) is not None), None)
    if time is None:
        raise BadInput(f"{answer.name} takes no timestep")
    t = float(np.ravel(_array(time))[0])
    if flows:
        units = [unit for unit, of in TIMES.items() if abs(of(sigma) - t) <= _NEAR * max(1, abs(t))]
        levels = {"levels": "flow"}
    else:
        units = [None] if t == step.time else []
        levels = {"levels": _levels(name, run).params["levels"]}
    if not units:
        known = ", ".join(TIMES) if flows else f"{step.time:g}"
        raise BadInput(f"{answer.name} is told timestep {t:g} at sigma {sigma:.6g}, expected {known}")
    more = {"prediction": "to-data" if sign < 0 else kind, **levels, "engine": "diffusers"}
    more |= {"time": units[0]} if units[0] else {}
    # At the first level, often 1, some mistakes make no difference.
    return case("prediction", name, _example("prediction", lambda params: True), sigma=float(run.sigmas[1]), **more)


# --- guidance ----------------------------------------------------------------------------------------------------


class _Fit(NamedTuple):
    """How the sampler's prediction is made of the network's answers.

    sign: it is times; form: of guidance, "" for none
    """

    sign: int
    form: str = ""
    scale: float = 1.0
    phi: float = 0.0


def _guidance(name: str, run: Recorded) -> Case | None:
    if not run.steps:
        return None
    fit = _fit(run)
    if not fit.form:
        return None
    more = {"phi": fit.phi} if fit.form == "rescale" else {}
    inputs = _example("guidance", lambda params: params["form"] == fit.form)
    return case("guidance", name, inputs, form=fit.form, scale=fit.scale, **more)


def _fit(run: Recorded) -> _Fit:
    step, answers = run.steps[0], _answers(run)
    given = _array(step.given)
    outputs = [np.concatenate(_floats(answer.output)) for answer in answers]
    halves = [half for y in outputs for half in np.split(y, max(1, y.size // given.size))]
    if any(half.size != given.size for half in halves) or not 1 <= len(halves) <= 2:
        sizes_of = ", ".join(str(y.size) for y in outputs)
        raise BadInput(f"{answers[0].name} answers {sizes_of} numbers for {given.size} of the sampler's prediction")
    if len(halves) == 1:
        for sign in (1, -1):
            if _same(sign * halves[0], given):
                return _Fit(sign)
        raise BadInput(f"the sampler is not given what {answers[0].name} answers")
    # One batch has uncond before cond, calls of their own are cond's first; Z-Image has a batch with cond first.
    last = _tensors(answers[0].output)[0].shape[-1]
    for cond, uncond in (halves[::-1], halves):
        for sign in (1, -1):
            fit = _form(sign * given.ravel(), cond, uncond, run.request, last)
            if fit is not None:
                return fit._replace(sign=sign)
    raise BadInput(f"the sampler's prediction is no guidance that refsd knows of {answers[0].name}'s two answers")


def _form(
    y: np.ndarray, cond: np.ndarray, uncond: np.ndarray, request: Mapping[str, Any], last: int
) -> _Fit | None:
    """Return the form of guidance and its scale, which is a number of the request.

    last: length of the answers' last axis
    """
    scales = [
        float(value)
        for key, value in request.items()
        if ("guidance" in key or "cfg" in key) and isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    phi = float(request.get("guidance_rescale") or 0.0)
    for scale in scales:
        plain = guide(cond[None], uncond[None], scale)
        if _equal(plain[0], y):
            return _Fit(1, "cfg", scale)
        if _equal(guide(cond[None], uncond[None], scale + 1)[0], y):
            return _Fit(1, "zimage", scale)
        if phi and _equal(rescale(plain, cond[None], phi)[0], y):
            return _Fit(1, "rescale", scale, phi)
        rows, right = plain.reshape(-1, last), cond.reshape(-1, last)
        norms = [np.linalg.norm(one, axis=1, keepdims=True) for one in (right, rows)]
        if _equal((rows * norms[0] / norms[1]).ravel(), y):
            return _Fit(1, "qwen-image", scale)
    return None


# --- arrays ------------------------------------------------------------------------------------------------------


def _answers(run: Recorded) -> list[Answer]:
    """Return the calls of the first step by networks that the second calls, too."""
    first: Step = run.steps[0]
    again = {answer.name for answer in run.steps[min(1, len(run.steps) - 1)].answers}
    answers = [answer for answer in first.answers if answer.name in again]
    if not answers:
        raise BadInput("no network runs at each step")
    return answers


def _array(x: Any) -> np.ndarray:
    return np.asarray(x.detach().double() if isinstance(x, torch.Tensor) else x, np.float64)


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(tree) if isinstance(tree, Mapping) else tree)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _floats(tree: Any) -> list[np.ndarray]:
    """Return the tensors of floats, flat."""
    return [_array(x).ravel() for x in _tensors(tree)]


def _equal(actual: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(actual - wanted).max() <= _NEAR * np.abs(wanted).max())


def _same(actual: np.ndarray, wanted: np.ndarray) -> bool:
    """Return True for the same numbers in any order: pipelines pack latents."""
    return actual.size == wanted.size and _equal(np.sort(actual, None), np.sort(wanted, None))


def _repeats(actual: np.ndarray, wanted: np.ndarray) -> bool:
    """Return True for the wanted numbers, once or for each item of a batch."""
    times, rest = divmod(actual.size, wanted.size)
    return times > 0 and not rest and _same(actual, np.tile(wanted.ravel(), times))


def _example(stage: str, fits: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    return next(one.inputs for one in STAGES[OP + stage].cases if fits(one.params))


_FINDERS: dict[str, Callable[[str, Recorded], Case | None]] = {
    "noise levels": _levels,
    "latents": _latents,
    "prediction": _prediction,
    "guidance": _guidance,
}
