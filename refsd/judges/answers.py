"""What the outputs of a model tell before a cause is sought: whether they can be explained, and by one factor."""

import numpy as np

from refsd.golden.explanation import Scene
from refsd.golden.judge import Answer, Standard


def comparable(standard: Standard, found: Answer) -> bool:
    """Whether a model's outputs can be diagnosed: all are there, of one shape and finite, as the honest are."""
    case, truth = standard.case, standard.truth
    same = all(name in found and found[name].shape == y.shape for name, y in truth.items())
    same = same and truth.keys() <= standard.honest.keys()
    return case.model is not None and same and all(np.isfinite(found[name]).all() for name in truth)


def scene_of(standard: Standard, found: Answer) -> Scene:
    """The outputs, each measured in units of its truth's root mean square, or of 1 where that is 0."""
    truth = standard.truth
    size = {name: float(np.sqrt(np.mean(y**2))) or 1.0 for name, y in truth.items()}
    return Scene(found, truth, standard.honest, size)


def factor(found: Answer, truth: Answer) -> float:
    """The factor that brings the truth nearest to what was found; 1 where there is none."""
    y, t = (np.concatenate([np.ravel(of[name]).astype(np.float64) for name in truth]) for of in (found, truth))
    return float(y @ t / (t @ t)) if t.any() and y @ t else 1.0
