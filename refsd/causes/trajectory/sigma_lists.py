"""Search the cause of a trajectory's wrong sigmas as that of `stage/sigmas`, whose rule makes the same list."""

import numpy as np

from refsd.causes.stage.causes import known_causes, searched_causes
from refsd.causes.stage.scene import Scene
from refsd.golden.case import Case
from refsd.numerics.profiles import Numerics
from refsd.stages import STAGES
from refsd.stages.stage import StageInputs
from refsd.trajectory.run import FLOW_LEVELS, levels_of, sigmas_of

# Engines whose levels between two trained ones are the reference's.
_ENGINE = "comfyui"


def sigma_causes(case: Case, found: np.ndarray, numerics: Numerics) -> list[str]:
    """Return what explains the list of sigmas; nothing for a schedule that the stage has otherwise."""
    stage, levels = STAGES["stage/sigmas"], "flow" if levels_of(case) is FLOW_LEVELS else "sd"
    asked = {"engine": _ENGINE, "levels": levels, "shift": 1.0}
    asked |= {k: case.params[k] for k in ("schedule", "steps")}
    inputs = StageInputs({}, stage.complete({}, asked), np.dtype(np.float64))
    answer = stage.answer(inputs)
    truth = sigmas_of(case)
    if answer is None or answer["sigmas"].shape != truth.shape or not np.allclose(answer["sigmas"], truth):
        return []
    with np.errstate(all="ignore"):
        answers = {mutant.name: stage.answer(inputs, mutant.change) for mutant in stage.mutants}
    known = {name: {"sigmas": np.asarray(y["sigmas"])} for name, y in answers.items() if y is not None}
    bound = stage.outputs["sigmas"].bound(inputs, truth, numerics)
    scene = Scene(stage, inputs, {"sigmas": found}, {"sigmas": truth}, {"sigmas": truth}, {"sigmas": bound})
    return known_causes(scene, known) or searched_causes(scene, known)
