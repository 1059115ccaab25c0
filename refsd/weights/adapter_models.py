"""Identify an adapter file: its kind, and the models whose layers it names."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from refsd.families import FAMILIES
from refsd.networks import NETWORKS
from refsd.networks.dimensions import Shape
from refsd.weights.adapter_kinds import KINDS, kind_of
from refsd.weights.adapter_names import PARTS, Target, aliases, split

# Released models: title -> component -> size.
MODELS: dict[str, Mapping[str, Any]] = {
    title: sizes for family in FAMILIES.values() for title, sizes in family.sizes.items()
}
# Key of adapter_kinds.KINDS -> its usual name.
TITLES: dict[str, str] = {
    "lora": "LoRA",
    "loha": "LoHa",
    "lokr": "LoKr",
    "glora": "GLoRA",
    "oft": "OFT",
    "oft of PEFT": "OFT",
    "boft of PEFT": "BOFT",
    "ia3": "IA3",
    "ia3 of PEFT": "IA3",
    "full": "full difference",
    "norm": "norm difference",
}
_DECOMPOSED = {"dora_scale", "magnitude"}
# Parts whose names occur in adapter files only, not in models.
_TELLING = set(PARTS.values()) - {"weight", "alpha"}


class AdapterSurvey(NamedTuple):
    """What the names and shapes in an adapter file show.

    kind:    "LoRA", or "LoRA and LoKr"
    models:  titles of the models that match most tensor names; empty if none matches at least half of them
    layers:  number of the models' layers that the file adapts
    unknown: tensor names that match no layer of the first model, or whose layer's parts are incomplete
    """

    kind: str
    models: tuple[str, ...]
    layers: int
    unknown: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return bool(self.models) and not self.unknown

    @property
    def title(self) -> str:
        article = "an" if self.kind[0] in "IO" else "a"
        return f"{article} {self.kind} for {_joined(self.models, 'or') or 'no model that refsd knows'}"


def survey_adapter(shapes: Mapping[str, Shape]) -> AdapterSurvey | None:
    """Identify an adapter file by its tensor names and shapes; None if no name is part of an adapter."""
    named = {name: parted for name in shapes if (parted := split(name)) is not None}
    if not any(part in _TELLING for _, part in named.values()):
        return None
    modules: dict[str, dict[str, str]] = {}
    for name, (module, part) in named.items():
        modules.setdefault(module, {})[part] = name
    best: dict[str, set[str]] = {}
    for title in MODELS:
        there = _fitting(modules, shapes, title)
        if there and len(there) >= max(map(len, best.values()), default=0):
            best = {of: known for of, known in best.items() if len(known) == len(there)} | {title: there}
    known = next(iter(best.values()), set())
    parts = sum(len(modules[module]) for module in known)
    if 2 * parts < len(shapes):
        best, known = {}, set()
    kinds = [_kind(modules[module], shapes) for module in modules if not known or module in known]
    usable = {name for module in known if _kind(modules[module], shapes) for name in modules[module].values()}
    unknown = tuple(name for name in shapes if name not in usable)
    kind = _joined(dict.fromkeys(filter(None, kinds)), "and") or _half(part for _, part in named.values())
    return AdapterSurvey(kind, tuple(best), len(known), unknown)


@functools.cache
def _layers(title: str) -> dict[str, tuple[Target, Shape]]:
    """Map every name that an adapter file may use for a layer of a model to the layer and its weight's shape."""
    sizes = MODELS[title]
    shapes = {component: NETWORKS[component].shapes(size) for component, size in sizes.items()}
    named = {name: target for name, target in aliases(sizes, shapes).items() if target.component in sizes}
    return {name: (of, shapes[of.component].get(f"{of.key}.weight", ())) for name, of in named.items()}


def _fitting(modules: Mapping[str, Mapping[str, str]], shapes: Mapping[str, Shape], title: str) -> set[str]:
    """Return the modules of a file whose names and sizes match layers of the model."""
    layers = _layers(title)
    parts = {module: {part: shapes[name] for part, name in of.items()} for module, of in modules.items()}
    return {module for module, of in parts.items() if module in layers and _fits(of, *layers[module])}


def _fits(parts: Mapping[str, Shape], target: Target, weight: Shape) -> bool:
    """Check the rows and columns that an adapter's parts imply against the shape `weight` of the layer's weight."""
    if not weight:
        return True
    rows = target.count or weight[0]
    pairs: list[tuple[int, int]] = []
    for part, axis, size in (("up", 0, rows), ("hada_w1_a", 0, rows), ("diff", 0, rows)):
        if len(parts.get(part, ())) > axis and "hada_t1" not in parts:
            pairs.append((parts[part][axis], size))
    if len(weight) > 1 and len(parts.get("down", ())) > 1:
        pairs.append((parts["down"][1], weight[1]))
    if len(parts.get("lokr_w1", ())) == 2 and len(parts.get("lokr_w2", ())) > 1:
        pairs.append((parts["lokr_w1"][0] * parts["lokr_w2"][0], rows))
        pairs.append((parts["lokr_w1"][1] * parts["lokr_w2"][1], weight[1] if len(weight) > 1 else 0))
    return all(found == expected for found, expected in pairs)


def _kind(parts: Mapping[str, str], shapes: Mapping[str, Shape]) -> str | None:
    """Return an adapter's title of TITLES, or "DoRA" or "BOFT" (no keys of KINDS); None if parts are missing."""
    kind = kind_of(parts)
    if kind is None:
        return None
    if parts.keys() & _DECOMPOSED:
        return "DoRA"
    if kind == "oft" and len(shapes[parts["oft_blocks"]]) == 4:
        return "BOFT"
    return TITLES[kind]


def _half(parts: Iterable[str]) -> str:
    """Return the title of the first kind that has one of these parts; for a file of incomplete adapters only."""
    there = {*parts} & _TELLING
    kinds = (name for name, kind in KINDS.items() if there & {*kind.needs, *kind.may})
    return TITLES[next(kinds, "lora")]


def _joined(words: Iterable[str], conjunction: str) -> str:
    """Join words as in "a, b or c"."""
    *first, last = [*words] or [""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last
