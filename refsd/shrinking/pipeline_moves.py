"""Simpler cases of models, stages and trajectories: smaller models and sizes, fewer inputs, steps and words."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from refsd.components import COMPONENTS
from refsd.golden.case import Case
from refsd.golden.operation import REQUIRED
from refsd.numerics.errors import BadInput
from refsd.shrinking.cropping import with_inputs
from refsd.shrinking.fewer_blocks import in_sizes_asked
from refsd.shrinking.named_axes import sizes_of, with_sizes
from refsd.stages import STAGES

_MODEL = "model/"


def without_inputs(case: Case) -> Iterator[Case]:
    """An input left out; where the model or the stage needs it there is no answer."""
    for name in case.inputs if len(case.inputs) > 1 else ():
        yield with_inputs(case, {k: recipe for k, recipe in case.inputs.items() if k != name})


def plainer_models(case: Case) -> Iterator[Case]:
    """The family's tiny model in the place of the full one, and weights as float32."""
    model = case.model
    if model is None:
        return
    if not model.tiny:
        yield from in_sizes_asked(replace(case, model=replace(model, tiny=True, sizes=UNSET)))
    if model.type != "f32":
        yield replace(case, model=replace(model, type="f32"))


def plainer_params(case: Case) -> Iterator[Case]:
    """A parameter left out, for its default; a number lower; a text or a list shorter."""
    defaults = _defaults(case)
    for name, value in case.params.items():
        rest = {k: v for k, v in case.params.items() if k != name}
        if defaults.get(name, REQUIRED) is not REQUIRED:
            yield replace(case, params=rest)
        for plainer in _plainer(value):
            yield replace(case, params={**case.params, name: plainer})


def _defaults(case: Case) -> Mapping[str, Any]:
    if case.op in STAGES:
        return STAGES[case.op].params
    return COMPONENTS[case.op.removeprefix(_MODEL)].params if case.op.startswith(_MODEL) else {}


def _plainer(value: Any) -> Iterator[Any]:
    """The shortest first. Of a choice, as the name of an engine, there is no plainer one but by luck."""
    if isinstance(value, bool):
        yield from (False,) if value else ()
    elif isinstance(value, int):
        yield from (n for n in dict.fromkeys((1, 2, 3, 4, value // 2, value - 1)) if 0 < n < value)
    elif isinstance(value, str):
        yield from _shorter_text(value)
    elif isinstance(value, (list, tuple)):
        yield from (value[:half] for half in dict.fromkeys((1, len(value) // 2)) if 0 < half < len(value))
        yield from ([*value[:i], *value[i + 1 :]] for i in range(len(value)) if len(value) > 1)
        yield from ([*value[:i], one, *value[i + 1 :]] for i, old in enumerate(value) for one in _plainer(old))


def _shorter_text(text: str) -> Iterator[str]:
    """Its halves, then the text without each of its words, then without each of its letters."""
    words = text.split(" ")
    if len(words) > 2:
        yield " ".join(words[: len(words) // 2])
        yield " ".join(words[len(words) // 2 :])
    if len(words) > 1:
        yield from (" ".join([*words[:i], *words[i + 1 :]]) for i in range(len(words)))
        return
    yield from (text[:i] + text[i + 1 :] for i in range(len(text)) if len(text) > 1)


def in_size(case: Case, name: str, size: int) -> Iterator[Case]:
    """The case with one size changed."""
    try:
        yield with_sizes(case, {name: size})
    except BadInput:
        return


def in_equal_sizes(case: Case, name: str, size: int) -> Iterator[Case]:
    """The case with every size changed that is as large as the one called `name`."""
    sizes = sizes_of(case)
    same = [other for other, n in sizes.items() if n == sizes[name]]
    if len(same) > 1:
        try:
            yield with_sizes(case, dict.fromkeys(same, size))
        except BadInput:
            return
