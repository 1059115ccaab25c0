"""Find state that one request leaves behind for the next, in engines that answer many requests in one process.

A failing case runs again alone, in a fresh process; and the first case that was answered runs again as the last.
The same case must give the same answer, up to rounding.
"""

from collections.abc import Sequence

import numpy as np

from refsd.golden.engine import EngineFailure, ServingEngine
from refsd.golden.examination import examine
from refsd.golden.judge import Answer, Inputs, Judge, Standard
from refsd.golden.metrics import Metrics
from refsd.golden.verdict import allowed_l2

LEFT_OVER = "earlier requests leave something behind in the process"


def conforms_alone(engine: ServingEngine, judge: Judge, standard: Standard, tapped: bool) -> bool:
    """Return True if the answer of a fresh process conforms."""
    try:
        found, taps = engine.run_alone(standard.case, _copied(standard.inputs), tapped)
    except EngineFailure:
        return False
    return examine(judge, standard, found, taps).verdict.passed


def asked_again(engine: ServingEngine, standard: Standard, found: Answer, outputs: Sequence[Metrics]) -> str:
    """Run the case again and say in a sentence how its answer has changed; "" if it has not.

    found: the first answer; outputs: its metrics
    """
    try:
        again = engine.run(standard.case, _copied(standard.inputs))
    except EngineFailure as error:
        return f"asked again as the last request, it fails: {error}"
    metrics = {m.output: m for m in outputs}
    for name, y in found.items():
        z = again.get(name)
        if z is None or z.shape != y.shape:
            return f"{name}: asked again as the last request, it is {'missing' if z is None else 'misshapen'}"
        y, z = np.asarray(y, np.float64), np.asarray(z, np.float64)
        changed = ~((y == z) | (np.isnan(y) & np.isnan(z)))
        if changed.any() and not _rounding(y, z, standard.truth.get(name), metrics.get(name)):
            at = [int(i) for i in np.argwhere(changed)[0]]
            return (
                f"{name}: asked again as the last request of the process, {changed.sum()} of {y.size} elements "
                f"differ, first at {at}: {y[*at]:.6g} before, {z[*at]:.6g} now"
            )
    return ""


def _rounding(y: np.ndarray, z: np.ndarray, truth: np.ndarray | None, m: Metrics | None) -> bool:
    """Return True if the two differ by no more than the declared numerics may differ from the truth."""
    if truth is None or m is None or not (np.isfinite(y).all() and np.isfinite(z).all()):
        return False
    return float(np.linalg.norm(y - z)) <= allowed_l2(m) * float(np.linalg.norm(truth))


def _copied(inputs: Inputs) -> Inputs:
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in inputs.items()}
