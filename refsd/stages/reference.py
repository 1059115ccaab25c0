"""Pictures to edit: how engines bring them to whole tokens."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.families import VARIANTS
from refsd.families.editing import References, nearest
from refsd.golden.recipe import Recipe
from refsd.stages.stage import REQUIRED, NoDifference, Output, Stage, StageInputs, case, magnitude, part

_ENGINES = "sdcpp", "diffusers"


class ReferenceRule(NamedTuple):
    """The parts of the rule. fitted: variant, engine -> function that fits pictures to the tokens"""

    fitted: Callable[[str, str], References] = lambda variant, engine: (VARIANTS[variant].references or {})[engine]


def _run(rule: ReferenceRule, inputs: StageInputs) -> dict[str, np.ndarray]:
    p = inputs.params
    fit = rule.fitted(p["variant"], p["engine"])
    return {"shown": fit((inputs.tensors["picture"],), (p["height"], p["width"]), p["token"])[0]}


def _other(name: str, change: Callable[[np.ndarray, tuple[int, int], tuple[int, int]], np.ndarray]):
    """change: the picture, the right size, the size drawn -> another picture"""

    def fitted(variant: str, engine: str) -> References:
        right = ReferenceRule().fitted(variant, engine)
        return lambda x, drawn, token: (change(x[0], right(x, drawn, token)[0].shape[2:], drawn),)

    return part(name, fitted=fitted)


def _first(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if x.shape[2] < size[0] or x.shape[3] < size[1]:
        raise NoDifference
    return x[:, :, : size[0], : size[1]]


_KNOWN = (
    _other("height and width of the new size exchanged", lambda x, size, drawn: nearest(x, (size[1], size[0]))),
    _other("resized to whole tokens, neither cut nor continued", lambda x, size, drawn: nearest(x, size)),
    _other("cut from the first corner, not from the middle", lambda x, size, drawn: _first(x, size)),
    _other("stretched to the size drawn", lambda x, size, drawn: nearest(x, drawn)),
    _other("neither resized nor cut", lambda x, size, drawn: x),
)


def _case(variant: str, engine: str):
    picture = {"picture": Recipe((1, 3, 52, 87), exponent=-20, offset=0.5)}
    return case("reference", f"{variant}-{engine}", picture, variant=variant, engine=engine, height=64, width=96)


STAGES = (
    Stage(
        "reference",
        "A picture to edit as the autoencoder is shown it: of whole tokens, whose sides are `token` pixels.",
        inputs={"picture": "[1, 3, H, W]: 0..1"},
        params={"variant": REQUIRED, "engine": REQUIRED, "height": REQUIRED, "width": REQUIRED, "token": 16},
        outputs={"shown": Output(("image", "channel", "row", "column"), magnitude, 1)},
        rule=ReferenceRule(),
        choices={"variant": [name for name, one in VARIANTS.items() if one.references], "engine": _ENGINES},
        run=_run,
        known=_KNOWN,
        cases=(_case("flux2-dev", "diffusers"), _case("flux2-dev", "sdcpp"), _case("flux3", "diffusers")),
    ),
)
