"""Prepare a model's outputs for the search for causes: are they comparable, and by which factor do they differ?"""

import numpy as np

from refsd.golden.explanation import Scene
from refsd.golden.judge import Answer, Standard


def comparable(standard: Standard, actual: Answer) -> bool:
    """Return True if there are outputs to diagnose, all there, finite, of the truth's shape."""
    truth = standard.truth
    same = bool(truth) and all(name in actual and actual[name].shape == y.shape for name, y in truth.items())
    same = same and truth.keys() <= standard.honest.keys()
    return same and all(np.isfinite(actual[name]).all() for name in truth)


def scene_of(standard: Standard, actual: Answer) -> Scene:
    """Return the Scene of the outputs. Errors are in units of the truth's RMS, or of 1 where that is 0."""
    truth = standard.truth
    size = {name: float(np.sqrt(np.mean(y**2))) or 1.0 for name, y in truth.items()}
    return Scene(actual, truth, standard.honest, size)


def factor(actual: Answer, truth: Answer) -> float:
    """Return the factor that best scales the truth to the found outputs (least squares); 1 if there is none."""
    y, t = (np.concatenate([np.ravel(of[name]).astype(np.float64) for name in truth]) for of in (actual, truth))
    return float(y @ t / (t @ t)) if t.any() and y @ t else 1.0
