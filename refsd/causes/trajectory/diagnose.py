"""Find the known bug of an engine's trajectory: apply each bug to the reference and see whether both then agree."""

from collections.abc import Mapping

import numpy as np

from refsd.causes.stage.causes import known_causes, searched_causes
from refsd.causes.stage.draws import normals
from refsd.causes.stage.scene import Scene
from refsd.causes.trajectory.changed_solvers import Run, changed_solvers, changed_weights, first_wrong, step_sigmas
from refsd.causes.trajectory.mutants import MUTANTS, Change, scheduled, stepping_on, wrong_forms
from refsd.causes.trajectory.simulate import answer
from refsd.golden.case import Case
from refsd.golden.rounding import unit
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.samplers.schedules import SCHEDULES
from refsd.stages import STAGES
from refsd.stages.stage import StageInputs
from refsd.trajectory import model as analytic
from refsd.trajectory.forms import Forms, forms, sensitivities
from refsd.trajectory.measure import forced, sigma_limits
from refsd.trajectory.run import (
    FLOW_LEVELS,
    Dump,
    can_be_stepped,
    from_one,
    levels_of,
    output_names,
    sigmas_of,
    solver_of,
    whole_sigmas,
)


def diagnose(
    case: Case, inputs: Mapping[str, StoredTensor], actual: Mapping[str, np.ndarray], numerics: Numerics
) -> list[str]:
    """Name the bugs with which the reference reproduces every step of the engine.

    Returns [] if outputs are missing, have a wrong shape or are not finite.
    """
    names, solver = output_names(case), solver_of(case)
    if not actual.keys() >= set(names):
        return []
    y = Dump(**{name: np.asarray(actual[name], np.float64) for name in names})
    one = inputs["noise"].shape[1:]
    calls = y.x.shape[:1]
    right = sigmas_of(case)
    if len(right) < len(whole_sigmas(case)) == len(y.sigmas):
        return [
            f"all {len(y.sigmas) - 1} steps are made, where {len(right) - 1} are asked for: end_at_step is not read"
        ]
    shapes = right.shape, (*calls, *one), (*calls, *one), one, (*calls, *one)
    outputs = [*y.outputs().values()]
    if any(a.shape != shape for a, shape in zip(outputs, shapes, strict=False)):
        return []
    u = unit(numerics.compute_dtype)
    if not all(np.isfinite(a).all() for a in outputs):
        return _not_finite(y, _near(case, from_one(y.sigmas) if solver.flow else y.sigmas, sigmas_of(case), u))
    if not can_be_stepped(case, y.sigmas):
        return _sigma_causes(case, y.sigmas, numerics)
    if solver.flow:
        y = y._replace(sigmas=from_one(y.sigmas))
    form = forms(solver, y.sigmas)
    noise = np.asarray(inputs["noise"].values(), np.float64)
    slopes = sensitivities(solver, y.sigmas)
    if len(form.rows) != len(y.x) + 1:
        return _other_calls(form, y, noise, u, slopes)
    right_sigmas = _near(case, y.sigmas, sigmas_of(case), u)
    named = []
    for name, change in MUTANTS:
        if not change.of(solver):
            continue
        told = change.sigmas(case) if change.sigmas is not None else None
        if (change.sigmas is None) != right_sigmas or (told is not None and not _near(case, y.sigmas, told, u)):
            continue
        if change.sigmas is not None and told is None:
            continue
        if _explains(case, form, y, noise, u, slopes, change):
            named.append(name)
    named = named or (_of_the_model(case, form, y, noise, u, slopes) if right_sigmas else [])
    if named := named or (_at_the_end(form, y, noise, u, slopes) if right_sigmas else []):
        return named
    explains = lambda form: _explains(case, form, y, noise, u, slopes, Change())
    near = lambda sigmas: _near(case, y.sigmas, sigmas, u)
    changed = changed_solvers(Run(case, y, right_sigmas, explains, near))
    if changed or not right_sigmas:
        return changed or _sigma_causes(case, y.sigmas, numerics)
    others = {f"{name}'s sigmas": scheduled(name, case) for name in SCHEDULES if not solver.flow}
    for name, other in {**others, "other sigmas": step_sigmas(form, y)}.items():
        if other is None or np.allclose(other, y.sigmas, rtol=1e-3, atol=0):
            continue
        if _explains(case, form, y, noise, u, slopes, stepping_on(other)):
            told = ", ".join(f"{sigma:.5g}" for sigma in other)
            return [f"the sampler steps on {name}, not on its own: {told}"]
    expected, limits = forced(form, y, noise, u, slopes)
    before = first_wrong(expected, limits, y)
    if before is None or not _answers_agree(case, form, y, u, Change(), before):
        return []
    weights = changed_weights(form, expected, limits, y, noise) or _other_stream(form, expected, y, noise, before)
    return [weights] if weights else []


def _other_stream(form: Forms, expected: np.ndarray, y: Dump, noise: np.ndarray, k: int) -> str:
    """Say that call k is right but for its own draw, in whose place other normal numbers are."""
    new = form.rows[k, form.known :] * ~form.rows[:k, form.known :].any(axis=0)
    if not new.any():
        return ""
    j = int(np.argmax(np.abs(new)))
    found = noise[1 + j] + ([*y.x, y.latent][k] - expected[k]) / new[j]
    return f"the noise of x[{k}] is of another stream, not draw {j + 1}" if normals(found, noise[1 + j]) else ""


def _other_calls(form: Forms, y: Dump, noise: np.ndarray, u: float, slopes: np.ndarray) -> list[str]:
    """Say how many calls of the model are too many or too few, and the first that is no call of the solver's."""
    right, found = len(form.rows) - 1, len(y.x)
    if not right or not found:
        return []
    fill = lambda t: t[[min(k, found - 1) for k in range(right)]]
    same = y._replace(x=fill(y.x), denoised=fill(y.denoised), uncond=None if y.uncond is None else fill(y.uncond))
    expected, limits = forced(form, same, noise, u, slopes)
    far = np.any(np.abs(same.x - expected[:-1]) > 4 * limits[:-1], axis=tuple(range(1, same.x.ndim)))
    shared = min(right, found)
    first = int(np.argmax(far[:shared])) if far[:shared].any() else shared
    many = f"the model is called {found} times, not {right}"
    if first < shared:
        return [f"{many}: call {first} is the first that is not the solver's"]
    if found < right:
        return [f"{many}: the last {right - found} are missing"]
    return [f"{many}: the last step calls it once more" if found == right + 1 else f"{many}: the last are too many"]


def _of_the_model(case: Case, form: Forms, y: Dump, noise: np.ndarray, u: float, slopes: np.ndarray) -> list[str]:
    """Blame the model's first answer, where every step of the solver is right."""
    if not _steps_agree(form, y, noise, u, slopes) or _answers_agree(case, form, y, u, Change(), 1):
        return []
    return ["the model's formula, not the solver: its first answer is wrong, where x and sigma are right"]


def _not_finite(y: Dump, right_sigmas: bool) -> list[str]:
    """Say where numbers cease to be finite; what divides by the last sigma only where all else is right."""
    if not np.isfinite(y.sigmas).all():
        return [f"sigma {int(np.argmin(np.isfinite(y.sigmas)))} is not finite"]
    for k, (x, denoised) in enumerate(zip(y.x, y.denoised, strict=True)):
        if not np.isfinite(x).all():
            return [f"x[{k}] is not finite, what the model is shown before is"]
        if not np.isfinite(denoised).all():
            return [f"denoised[{k}] is not finite, x[{k}] is: so the model answers, or what is made of its answer"]
    kind = "NaN" if np.isnan(y.latent).any() else "infinite"
    if not right_sigmas:
        last = ", ".join(f"{sigma:.4g}" for sigma in y.sigmas[-3:])
        return [f"the last step gives {kind}, and the sigmas are wrong: {last}"]
    along = np.sign(y.latent) * np.sign(np.diff(y.denoised[-2:], axis=0))
    if np.isinf(y.latent).all() and abs(along.sum()) == y.latent.size:
        return ["the last step, to sigma 0, is of second order, not of first: denoised's last change is over 0"]
    return [f"the last step gives {kind}: it divides by the last sigma, 0, or takes its logarithm"]


def _at_the_end(form: Forms, y: Dump, noise: np.ndarray, u: float, slopes: np.ndarray) -> list[str]:
    """Say what the end alone is off by: a multiple of the last change of denoised, or normal noise."""
    expected, limits = forced(form, y, noise, u, slopes)
    if len(y.denoised) < 2 or not (np.abs(y.x - expected[:-1]) <= 4 * limits[:-1]).all():
        return []
    change, error = y.denoised[-1] - y.denoised[-2], y.latent - expected[-1]
    share = float(np.vdot(error, change) / (np.vdot(change, change) or 1.0))
    rest = np.abs(error - share * change)
    if share != 0 and (rest <= 4 * limits[-1] + 16 * u * np.abs(share * change)).all():
        return ["the last step is of second order, where it should be of first"]
    sure, unlike = 4 / np.sqrt(error.size), np.stack([t.ravel() for t in (error, change, y.latent - error)])
    z = (error - error.mean()) / (error.std() or 1.0)
    normal = abs(error.mean()) < sure * error.std() and abs((z**4).mean() - 3) < 24**0.5 * sure
    none = not form.rows[-1, form.known :].any() and error.std() < (1 + sure) * y.sigmas[-2]
    if none and error.size >= 64 and normal and (np.abs(np.corrcoef(unlike)[0, 1:]) < sure).all():
        return [f"noise is added after the last step, too, of deviation {error.std():.2g}"]
    return []


def _near(case: Case, sigmas: np.ndarray, others: np.ndarray, u: float) -> bool:
    return len(sigmas) == len(others) and bool(np.all(np.abs(sigmas - others) <= sigma_limits(case, others, u)))


def _explains(
    case: Case, form: Forms, y: Dump, noise: np.ndarray, u: float, slopes: np.ndarray, change: Change
) -> bool:
    wrong = wrong_forms(change, case, form, y.sigmas)
    stepped = wrong is not None and _steps_agree(wrong, y, noise, u, slopes)
    return wrong is not None and stepped and _answers_agree(case, wrong, y, u, change)


def _steps_agree(form: Forms, y: Dump, noise: np.ndarray, u: float, slopes: np.ndarray) -> bool:
    expected, limits = forced(form, y, noise, u, slopes)
    return bool((np.abs(np.concatenate([y.x, y.latent[None]]) - expected) <= 4 * limits).all())


def _answers_agree(case: Case, form: Forms, y: Dump, u: float, change: Change, calls: int | None = None) -> bool:
    """Whether the model's answers, or the first few, are those of a model with this change."""
    guidances, flow = (3 * case.params["guidance"], 0.0), solver_of(case).flow
    columns = [column for column in (y.denoised, y.uncond) if column is not None]
    for k, sigma in enumerate(form.sigmas[:calls]):
        answers = answer(case, form, y.sigmas, k, y.x[k], sigma, change)
        for found, right, guidance in zip(columns, answers, guidances, strict=False):
            # No guidance bug weighs a term by more than three times the case's guidance plus 2.
            limit = analytic.limit(y.x[k], float(sigma), guidance + 2, u, flow)
            if flow and change.answers is not None:  # (x - denoised) / sigma
                limit = (limit + 16 * u * np.abs(y.x[k])) / min(float(sigma), 1.0)
            if not (np.abs(found[k] - right) <= 4 * limit).all():
                return False
    return True


def _sigma_causes(case: Case, actual: np.ndarray, numerics: Numerics) -> list[str]:
    """Search wrong sigmas' cause as that of `stage/sigmas` at ComfyUI's levels; nothing where the lists differ."""
    stage, levels = STAGES["stage/sigmas"], "flow" if levels_of(case) is FLOW_LEVELS else "sd"
    wanted = {"engine": "comfyui", "levels": levels, "shift": 1.0}
    wanted |= {k: case.params[k] for k in ("schedule", "steps")}
    inputs = StageInputs({}, stage.complete({}, wanted), np.dtype(np.float64))
    answer = stage.answer(inputs)
    truth = sigmas_of(case)
    if answer is None or answer["sigmas"].shape != truth.shape or not np.allclose(answer["sigmas"], truth):
        return []
    with np.errstate(all="ignore"):
        answers = {mutant.name: stage.answer(inputs, mutant.change) for mutant in stage.mutants}
    known = {name: {"sigmas": np.asarray(y["sigmas"])} for name, y in answers.items() if y is not None}
    bound = stage.outputs["sigmas"].bound(inputs, truth, numerics)
    scene = Scene(stage, inputs, {"sigmas": actual}, {"sigmas": truth}, {"sigmas": truth}, {"sigmas": bound})
    return known_causes(scene, known) or searched_causes(scene, known)
