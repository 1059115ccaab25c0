"""The largest values inside a model: what an engine that computes in float16 would overflow."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.components import COMPONENTS
from refsd.golden.recipe import Recipe, realize
from refsd.module import Module, Taps
from refsd.networks.component import IDS, MASK
from refsd.networks.fits import Fit
from refsd.numerics.errors import BadInput

FLOAT16 = 65504.0  # largest finite float16
# Sizes of inputs that nothing in the weights decides: pixels of the latent, tokens.
_SIDES, _TOKENS = (32, 16, 64, 128), (77, 32, 256, 154, 512)
_THOUSAND = ("unet", "controlnet", "mmdit")  # networks whose timesteps run from 0 to 1000


class Range(NamedTuple):
    """The largest absolute values at one layer or operation.

    largest: of its output
    product: of its matrix product or convolution before the bias is added; None for an operation without weights
    step:    sampling step of the call, from 1; 0 outside of a sampling run
    """

    name: str
    largest: float
    product: float | None
    step: int = 0

    @property
    def worst(self) -> float:
        return max(self.largest, self.product or 0.0)


class Ranges(Taps):
    """Taps that keep the largest absolute value of every output, and no output.

    start: begins the names
    step:  sampling step of the next values
    """

    def __init__(self, m: Module, start: str = ""):
        super().__init__(ops=True)
        self.module, self.start, self.step = m, start, 0
        self.found: list[Range] = []

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        largest = float(np.abs(value).max(initial=0.0))
        self.found.append(Range(self.start + name, largest, self._product(name, value), self.step))
        return value

    def _product(self, name: str, y: np.ndarray) -> float | None:
        """Return the largest value before the bias; the layer's channels are axis 1 of pictures, else the last."""
        weights = self.module.weights
        if f"{name}.weight" not in weights or len(self.module.shape(f"{name}.weight")) < 2:
            return None
        if f"{name}.bias" not in weights:
            return float(np.abs(y).max(initial=0.0))
        bias = self.module.weight(f"{name}.bias")
        if len(self.module.shape(f"{name}.weight")) == 4 and y.ndim == 4:
            bias = bias[:, None, None]
        return float(np.abs(y - bias).max(initial=0.0))


def drawn_inputs(component: str, m: Module) -> dict[str, np.ndarray]:
    """Draw inputs of a component from recipes: values of deviation 1, mid-way timesteps, all tokens shown.

    Raises BadInput if no size that is tried fits the weights.
    """
    table = COMPONENTS[component]
    fits = table.fits(m)
    sizes: dict[str, int] = {}
    inputs = {}
    for name, argument in table.arguments.items():
        if argument.optional and (name not in fits or fits[name].holds(0)):
            continue
        shape = tuple(_size(component, letter, sizes, fits) for letter in argument.shape.split())
        if argument.kind is IDS:
            recipe = Recipe(shape, "i32", data="token_ids", exponent=0, n=fits["V"].n)
        elif argument.kind is MASK:
            recipe = Recipe(shape, "i32", data="constant", exponent=0, offset=1)
        elif name == "timesteps":
            recipe = Recipe(shape, data="constant", offset=500.0 if table.part in _THOUSAND else 0.5)
        else:
            recipe = Recipe(shape, data="constant", offset=3.5) if name == "guidance" else Recipe(shape)
        inputs[name] = realize(recipe, f"range/{component}/{name}").values()
    return inputs


def _size(component: str, letter: str, sizes: dict[str, int], fits: Mapping[str, Fit]) -> int:
    """Return a size that the weights take for a letter of a shape ("H", "J+L", "8H" or "3")."""
    factor, name = re.fullmatch(r"(\d*)(.*)", letter).groups()  # type: ignore[union-attr]
    if "+" in letter:
        return sum(sizes[part] for part in letter.split("+"))
    if not name:
        return int(factor)
    if factor:
        return int(factor) * sizes[name]
    if name not in sizes:
        fit = fits.get(name)
        tried = (1,) if name == "N" else _SIDES if name in "HW" else _TOKENS
        own = (fit.n,) if fit else ()
        size = next((n for n in (*tried, *own) if fit is None or fit.holds(n)), None)
        if size is None:
            raise BadInput(f"{component}: {name} must be {fit.says if fit else 'given'}: name a file with --inputs")
        sizes[name] = size
    return sizes[name]


def in_order(found: list[Range]) -> list[Range]:
    """Return one range for each name, its worst call, largest first; what is not finite counts as infinite."""
    worst: dict[str, Range] = {}
    for one in found:
        if one.name not in worst or one.worst > worst[one.name].worst:
            worst[one.name] = one
    return sorted(worst.values(), key=lambda one: -one.worst if math.isfinite(one.worst) else -math.inf)
