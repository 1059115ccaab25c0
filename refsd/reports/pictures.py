"""Draw small pictures of failing answers: a map of the error, and the answer itself if it is an image."""

import base64
import io
import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from refsd.golden.conform import Answered
from refsd.golden.report import Pair, Result
from refsd.golden.verdict import judge_output
from refsd.numerics.printable import printable

_SIDE = 96  # greatest side in pixels
_OUTPUTS = 2
_ANSWERS = 400
_RANGE = 100.0  # ratio of the largest error, darkest, to the one drawn white
_STOPS = np.array([(255, 255, 255), (255, 237, 160), (253, 141, 60), (189, 0, 38), (40, 0, 30)], np.float64)


class Picture(NamedTuple):
    """A small picture.

    caption: describes the picture
    png:     bytes of the PNG file; width and height in pixels
    """

    caption: str
    png: bytes
    width: int
    height: int

    @property
    def url(self) -> str:
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


class Pictures:
    """Collects the pictures of a run's failing answers."""

    def __init__(self):
        self.of: dict[Pair, list[Picture]] = {}

    def add(self, result: Result, answered: Answered) -> None:
        """Draw an answer's first wrong tap, then its first wrong outputs."""
        if len(self.of) >= _ANSWERS:
            return
        standard, drawn = answered.standard, []
        for tap, (truth, honest) in answered.examined.trace.first.items():
            y = answered.taps.get(tap)
            if tap not in standard.truth and y is not None and np.size(y) == truth.size:
                drawn += draw(tap, np.reshape(y, truth.shape), truth, honest, False)
        most = len(drawn) + _OUTPUTS
        for m in answered.examined.outputs:
            y, truth = answered.actual.get(m.output), standard.truth.get(m.output)
            if y is None or truth is None or y.shape != truth.shape or judge_output(m).passed:
                continue
            drawn += draw(m.output, y, truth, standard.honest[m.output], standard.case.op.startswith("model/"))
            if len(drawn) >= most:
                break
        if drawn:
            self.of[result.engine, result.case] = drawn


def draw(name: str, actual: np.ndarray, truth: np.ndarray, honest: np.ndarray, picture: bool) -> list[Picture]:
    """Draw the error map of one output; for an image [N, 3, H, W] also the engine's and the reference's image.

    picture: True if an output of this shape is an image
    """
    if truth.ndim == 0 or not truth.size:
        return []
    actual, truth, honest = (np.asarray(y, np.float64) for y in (actual, truth, honest))
    drawn = [_error_map(printable(name, 80), actual, truth, honest)]
    if picture and truth.ndim == 4 and truth.shape[1] == 3 and np.isfinite(truth).all():
        drawn += [_picture("the engine's", actual, truth), _picture("the reference's", truth, truth)]
    return drawn


def _error_map(name: str, actual: np.ndarray, truth: np.ndarray, honest: np.ndarray) -> Picture:
    """Map the error in units of the honest run's RMS error, log scale; the mean over all but the last two axes."""
    with np.errstate(all="ignore"):
        size = math.sqrt(float(np.mean(np.where(np.isfinite(truth), truth, 0.0) ** 2)))
        honest_error = np.where(np.isfinite(honest - truth), honest - truth, 0.0)
        unit = max(math.sqrt(float(np.mean(honest_error**2))), size * 2.0**-24) or 1.0
        z = np.abs(actual - truth) / unit
        z = np.where(actual == truth, 0.0, np.nan_to_num(z, nan=1e30, posinf=1e30))
        z = np.clip(z, 0.0, 1e30)
    plane = z.mean(axis=tuple(range(z.ndim - 2))) if z.ndim > 2 else np.atleast_2d(z)
    blocks = _largest(plane)
    most = max(float(plane.max()), 10.0)
    low = max(most / _RANGE, 1.0)
    level = np.log10(np.clip(blocks, low, None) / low) / math.log10(most / low)
    image = Image.fromarray(np.rint(level * 255).astype(np.uint8), "P")
    image.putpalette([int(c) for i in range(256) for c in _colour(i / 255)])
    shape = "x".join(map(str, truth.shape))
    caption = (
        f"{name} [{shape}]: mean error, white up to {low:.3g}, darkest {most:.3g} of the honest run's RMS error"
    )
    return _encoded(caption, image)


def _largest(plane: np.ndarray) -> np.ndarray:
    """Shrink to at most _SIDE per axis by block maxima, so that a single wrong element stays visible."""
    for axis, n in enumerate(plane.shape):
        if n > _SIDE:
            plane = np.maximum.reduceat(plane, np.arange(0, n, -(-n // _SIDE)), axis=axis)
    return plane


def _picture(whose: str, y: np.ndarray, truth: np.ndarray) -> Picture:
    """Draw the first image of y [N, 3, H, W], scaled so that the truth's minimum is black and its maximum white."""
    low, high = float(truth.min()), float(truth.max())
    with np.errstate(all="ignore"):
        unit = np.clip(np.nan_to_num((y[0] - low) / ((high - low) or 1.0)), 0.0, 1.0)
    image = Image.fromarray(np.rint(unit * 255).astype(np.uint8).transpose(1, 2, 0))
    image.thumbnail((_SIDE, _SIDE))
    return _encoded(whose, image)


def _colour(level: float) -> np.ndarray:
    at = level * (len(_STOPS) - 1)
    i = min(int(at), len(_STOPS) - 2)
    return _STOPS[i] + (at - i) * (_STOPS[i + 1] - _STOPS[i])


def _encoded(caption: str, image: Image.Image) -> Picture:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return Picture(caption, file.getvalue(), image.width, image.height)
