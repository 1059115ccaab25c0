"""Explain why two pictures differ: exchange settings one by one, and recompute the stage that differs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from refsd.disagreement.picture_runs import PictureRun, encode, run_picture
from refsd.disagreement.plan_settings import Difference, differences, exchanged
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan

Distance = Callable[[np.ndarray | None, np.ndarray | None], float | None]

TEXT = ("tokens.", "cond", "uncond")
ALL = "all of it is "
TIMESTEPS = ".timesteps"
# The settings that each stage reads.
_TEXT_SETTINGS = (
    *("convention.prompt", "convention.projects_clip_l", "convention.weighs_together"),
    *("convention.zeros_empty", "convention.zeros_pooled", "convention.zeros_refiner", "convention.family_rows"),
)
_LEVEL_SETTINGS = ("schedule", "steps", "strength", "flow_shift", "levels")
_LEVEL_RULES = ("convention.family_rows", "convention.reads_scheduler", "convention.truncation")
_START_SETTINGS = (
    *("rng", "first_noise", "from_image"),
    *("convention.one_stream", "convention.whole_batch", "convention.draws_init"),
)
_STEP_SETTINGS = (
    *("sampler", "sampler_rng", "cfg_scale", "guided"),
    *("image_cfg_scale", "guidance", "output", "prediction"),
)
# Settings of the steps are tried one by one where all runs take no longer.
_SECONDS = 60
_WORTH_SAYING = 0.5  # report a setting that leaves at most this share of the difference


def explain_root(
    pipe: Pipeline, stage: str, a: Plan, b: Plan, target: np.ndarray, distance: Distance, limit: float
) -> list[str]:
    """Find the settings of b that turn a's tensor at a stage into the target. -> phrases

    target: b's tensor of the stage
    limit:  relative L2 distance up to which tensors count as equal

    Noise levels depend on many settings through `resolve`; for them, all settings that differ are listed.
    """
    known = {difference.name: difference for difference in differences(a, b)}
    if stage.endswith(TIMESTEPS):
        suspects = [known["levels"]] if "levels" in known else []
        return (
            _explaining(a, b, suspects, lambda plan: _timestep(plan, target, distance), limit) if suspects else []
        )
    if stage == "sigmas":
        tables = [getattr(plan.levels, "sigmas", None) for plan in (a, b)]
        if tables[0] is not None and tables[1] is not None and np.array_equal(tables[0], tables[1]):
            known.pop("levels", None)  # they give other timesteps, not other levels
        own = [str(known[name]) for name in _LEVEL_SETTINGS if name in known]
        return own or [str(known[name]) for name in _LEVEL_RULES if name in known]
    text = stage.startswith(TEXT)
    compute, read = (_text, _TEXT_SETTINGS) if text else (_start, _START_SETTINGS)
    suspects = [known[name] for name in read if name in known]

    def left(plan: Plan) -> float | None:
        return distance(compute(pipe, plan).get(stage), target)

    return _explaining(a, b, suspects, left, limit) if suspects else []


def _explaining(
    a: Plan, b: Plan, suspects: Sequence[Difference], left: Callable[[Plan], float | None], limit: float
) -> list[str]:
    before = left(a)
    shares, together = {}, a
    for suspect in suspects:
        rest = left(exchanged(a, b, suspect.name))
        together = exchanged(together, b, suspect.name)
        if rest is not None and rest <= limit:
            return [f"{ALL}{suspect}"]
        if rest is not None and before is not None and rest < before * _WORTH_SAYING:
            shares[suspect] = 1 - rest / before
    rest = left(together)
    if rest is not None and rest <= limit:
        return [f"{ALL}{'; '.join(map(str, suspects))}"]
    return [f"{share:.0%} of it is {suspect}" for suspect, share in shares.items()]


def explain_wrong(
    pipe: Pipeline,
    stage: str,
    own: Plan,
    donors: Mapping[str, Plan],
    actual: np.ndarray,
    distance: Distance,
    limit: float,
) -> list[str]:
    """Find settings with which the reference agrees with a dump at the dump's first wrong stage. -> phrases

    donors: name of another convention or schedule -> the plan with it
    """
    causes = []
    for name, donor in donors.items():
        if stage == "sigmas":
            left = distance(donor.sigmas[: len(actual)], actual)
            causes += [f"the noise levels are those of {name}"] if left is not None and left <= limit else []
        else:
            whole = explain_root(pipe, stage, own, donor, actual, distance, limit)
            causes += [cause.removeprefix(ALL) for cause in whole if cause.startswith(ALL)]
    return causes


def inherited(pipe: Pipeline, a: PictureRun, b: PictureRun, distance: Distance, limit: float) -> str:
    """Say in a sentence whether a's sampler ends like b's from b's conditioning, noise levels and first latent."""
    its = {name: getattr(b.plan, name) for name in ("sigmas", "levels", "first_noise", "last_scale", "seeds")}

    def left(plan: Plan) -> float | None:
        grafted = run_picture(pipe, replace(plan, **its), b.conditioning, b.start)
        return distance(grafted.tensors["latent"], b.tensors["latent"])

    began = time.perf_counter()
    rest = left(a.plan)
    if rest is not None and rest <= limit:
        return "all that follows is inherited: from the same conditioning, levels and noise both end alike"
    suspects = [d for d in differences(a.plan, b.plan) if d.name in _STEP_SETTINGS]
    is_short = (time.perf_counter() - began) * (1 + len(suspects)) <= _SECONDS
    tried = _explaining(a.plan, b.plan, suspects, left, limit) if suspects and is_short else []
    why = "neither alone nor together enough" if is_short else "not tried"
    said = [cause.removeprefix(ALL) for cause in tried]
    said = said or [f"{why}: {', '.join(map(str, suspects))}"] * bool(suspects)
    apart = "in another shape" if rest is None else f"{rest:.2g} apart"
    ended = f"the steps differ too: from the same conditioning, levels and noise they end {apart}"
    return f"{ended} ({'; '.join(said)})" if said else ended


def _timestep(plan: Plan, target: np.ndarray, distance: Distance) -> float | None:
    """Return how far the target is from the nearest timestep that the network receives at a level of the plan."""
    given = [np.full(target.shape, plan.levels.to_t(float(sigma))) for sigma in plan.sigmas if sigma > 0]
    left = [apart for t in given if (apart := distance(t, target)) is not None]
    return min(left, default=None)


def _text(pipe: Pipeline, plan: Plan) -> Mapping[str, np.ndarray]:
    return encode(pipe, plan)[1]


def _start(pipe: Pipeline, plan: Plan) -> Mapping[str, np.ndarray]:
    start = initial_latent(pipe, plan, plan.seeds[0])
    latent = {} if start.latent is None else {"init": start.latent}
    return {"noise": start.noise, **latent, "steps.0.x": start.first_x(plan, pipe.dtype)}
