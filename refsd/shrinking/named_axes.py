"""The sizes of the inputs of models, stages and trajectories by name, and the same case in other sizes.

A component's page writes an input's shape as "N 3 8H 8W", a stage's as "[N, 3, 8 H, W / 4]: ...". An axis whose
input has no declared shape, or that has another size than its name has elsewhere, has a name of its own: "noise.2".
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from refsd.components import COMPONENTS
from refsd.golden.case import Case
from refsd.judges.picture import OP as PICTURE
from refsd.numerics.errors import BadInput
from refsd.shrinking.cropping import with_inputs
from refsd.stages import STAGES

_MODEL = "model/"
_AXIS = re.compile(r"(\d*)\s*([A-Za-z]\w*)?\s*(?:/\s*(\d+))?")
_BRACKETS = re.compile(r"\[([^\]]*)\](?: or .*|, .*|:.*)?")
# noise of a trajectory: the first and one for each draw
_TRAJECTORY = {"noise": "[draws, N, C, H, W]"}


class Axis(NamedTuple):
    """times * name / over; name "": always `times`"""

    times: int
    name: str
    over: int

    def size(self, n: int) -> int:
        """Raises BadInput for a division with a rest."""
        if self.times * n % self.over:
            raise BadInput(f"{self.times} {n} is no multiple of {self.over}")
        return self.times * n // self.over


def _axis(text: str) -> Axis | None:
    match = _AXIS.fullmatch(text.strip())
    return Axis(int(match[1] or 1), match[2] or "", int(match[3] or 1)) if match else None


def _declared(case: Case) -> Mapping[str, str]:
    """The shape of each input as its page has it, axes separated by commas."""
    if case.op.startswith(_MODEL):
        arguments = COMPONENTS[case.op.removeprefix(_MODEL)].arguments
        return {name: ", ".join(argument.shape.split()) for name, argument in arguments.items()}
    if case.op == PICTURE:
        return {}
    texts = _TRAJECTORY if case.op == "trajectory" else STAGES[case.op].inputs
    matches = {name.rstrip("?"): _BRACKETS.fullmatch(text) for name, text in texts.items()}
    return {name: match[1] for name, match in matches.items() if match}


def axes_of(case: Case) -> dict[str, tuple[Axis, ...]]:
    """The axes of each input, in such a way that every name has one size."""
    declared, axes = _declared(case), {}
    sizes: dict[str, int] = {}
    for name, recipe in case.inputs.items():
        read = [_axis(text) for text in declared.get(name, "").split(",")]
        own = [Axis(1, f"{name}.{i}", 1) for i in range(len(recipe.shape))]
        known = [one for one in read if one is not None]
        if len(known) == len(read) == len(recipe.shape):
            pairs = zip(known, own, recipe.shape, strict=True)
            own = [one if _agrees(one, size, sizes) else other for one, other, size in pairs]
        axes[name] = tuple(own)
    return axes


def _agrees(axis: Axis, size: int, sizes: dict[str, int]) -> bool:
    """Whether an axis of this size goes with those that were there before; then its name's size is noted."""
    if not axis.name:
        return size == axis.times
    n, rest = divmod(size * axis.over, axis.times)
    return not rest and sizes.setdefault(axis.name, n) == n


def sizes_of(case: Case) -> dict[str, int]:
    """The size of every name."""
    return {
        axis.name: size * axis.over // axis.times
        for name, axes in axes_of(case).items()
        for axis, size in zip(axes, case.inputs[name].shape, strict=True)
        if axis.name
    }


def with_sizes(case: Case, sizes: Mapping[str, int]) -> Case:
    """The case with some sizes changed. Raises BadInput where they do not go together."""
    known = {**sizes_of(case), **sizes}
    inputs = {
        name: replace(
            case.inputs[name],
            shape=tuple(axis.size(known[axis.name]) if axis.name else axis.times for axis in axes),
        )
        for name, axes in axes_of(case).items()
    }
    return with_inputs(case, inputs)
