"""Estimate, before goldens of full size are made, the disk space and about how long it takes."""

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.golden.case import Case, ModelRecipe
from refsd.golden.wording import counted
from refsd.weights.model_files import kept_size
from refsd.weights.recipes import shapes, size

# Bytes of weights that are drawn and written in a second, by one core of 2023.
_WRITTEN = 150e6
# Share of a product's speed that a whole model reaches.
_SHARE = 0.3


class Estimate(NamedTuple):
    """
    models: full-size weights to make; disk: their bytes; free: bytes that the disk has
    seconds: to make them and to compute the answers, within a factor of about three
    """

    models: int
    disk: int
    free: int
    seconds: float

    @property
    def line(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        weights = (
            f"weights of {counted(self.models, 'model')} to make, {self.disk / 1e9:.1f} GB of {self.free / 1e9:.0f}"
        )
        return f"{weights} GB free; in all about {counted(minutes, 'minute')}, within a factor of three"


def estimate(cases: Sequence[Case], kept: Path) -> Estimate | None:
    """Estimate what full-size cases take; None if there are none. kept: the folder of models between runs

    Time counts each matrix as used once for every position of the largest input: too much for a UNet, whose larger
    matrices see fewer positions.
    """
    full = [case for case in cases if case.model is not None and not case.model.tiny]
    if not full:
        return None
    missing = {case.model: size(case.model) for case in full if case.model and not kept_size(case.model)}
    products = sum(_products(case, case.model) for case in full if case.model)
    folder = next(path for path in (kept, *kept.absolute().parents) if path.exists())
    disk = sum(missing.values())
    seconds = disk / _WRITTEN + products / (_SHARE * _rate())
    return Estimate(len(missing), disk, shutil.disk_usage(folder).free, seconds)


def _products(case: Case, model: ModelRecipe) -> float:
    """Multiplications of a case, about."""
    largest = max((recipe.shape for recipe in case.inputs.values()), key=math.prod, default=(1,))
    positions = math.prod(largest) // (largest[1] if len(largest) == 4 else largest[-1] if len(largest) == 3 else 1)
    of_each = {
        component: sum(math.prod(shape) for shape in of.values() if len(shape) > 1)
        for component, of in shapes(model).items()
    }
    component = case.op.removeprefix("model/")
    matrices = of_each.get(component, sum(of_each.values()))
    # A picture's UNet runs with and without the prompt in each step.
    runs = 2 * int(case.params.get("steps", 20)) if case.op == "picture" else 1
    return float(matrices) * positions * runs


def _rate() -> float:
    """Multiplications in a second, measured."""
    x = np.ones((512, 512))
    np.dot(x, x)
    begun = time.perf_counter()
    for _ in range(4):
        np.dot(x, x)
    return 4 * 512**3 / (time.perf_counter() - begun)
