"""Judge each tap alone: force the reference's tensors on the engine, so that no error propagates.

Otherwise a tap is judged on the engine's own earlier taps, which tells nothing where those are not finite.
"""

import math

import numpy as np

from refsd.golden.engine import Engine, EngineFailure, ForcedEngine
from refsd.golden.examination import Examination
from refsd.golden.judge import Answer, Judge, Standard
from refsd.golden.wording import counted

_NAMED = 3  # most wrong taps to name


def wrong_alone(engine: Engine, judge: Judge, standard: Standard, taps: Answer) -> str:
    """Say in a phrase which of an engine's taps are wrong when all of them are forced; "" if none can be.

    taps: the engine's taps without forcing; those that the reference has too, in the same size, are forced
    """
    case, inputs = standard.case, standard.inputs
    if not taps or not isinstance(engine, ForcedEngine) or not engine.can_force(case):
        return ""
    reference = judge.reference_taps(case, inputs)
    forced = {
        name: np.reshape(reference[name], y.shape).astype(np.float32)
        for name, y in taps.items()
        if name in reference and y.size == math.prod(np.shape(reference[name]))
    }
    try:
        actual, own = engine.run_forced(case, inputs, forced)
    except EngineFailure as error:
        return f"forced to the reference's tensors, it fails: {error}"
    trace = judge.trace(case, inputs, {**own, **actual}, standard.numerics, standard.deviations, forced)
    wrong = Examination(trace, ()).wrong
    if not trace.taps:
        return ""
    named = ": " + ", ".join(wrong[:_NAMED]) + (", ..." if len(wrong) > _NAMED else "") if wrong else ""
    return f"forced to the reference's tensors, {len(wrong)} of {counted(len(trace.taps), 'tap')} are wrong{named}"
