"""Identify an adapter file: its kind, and the models whose layers it names."""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from refsd.families import FAMILIES
from refsd.models.catalogue import NETWORKS
from refsd.networks.dimensions import Shape
from refsd.weights.adapter_kinds import KINDS, kind_of
from refsd.weights.adapter_names import PARTS, Target, aliases, bundled_embedding, split

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
_NAMED = 3  # models of other sizes, in a title
# Parts whose names occur in adapter files only, not in models.
_TELLING = set(PARTS.values()) - {"weight", "alpha"}


class AdapterSurvey(NamedTuple):
    """What the names and shapes in an adapter file show.

    kind:    "LoRA", or "LoRA and LoKr"
    models:  titles of the models that match most tensor names; empty if none matches at least half of them
    layers:  number of the models' layers that the file adapts
    unknown: tensor names that match no layer of these models (of `resized`, where those are empty), or whose
             layer's parts are incomplete
    embeddings: names of the textual inversions in the file
    resized: where `models` is empty, titles of the models that have most of these layers' names, in other sizes
    """

    kind: str
    models: tuple[str, ...]
    layers: int
    unknown: tuple[str, ...]
    embeddings: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return bool(self.models) and not self.unknown

    @property
    def title(self) -> str:
        article = "an" if self.kind[0] in "IO" else "a"
        resized = f"a model with the layers of {self.resized_as} in other sizes" if self.resized else ""
        return f"{article} {self.kind} for {self.candidates or resized or 'no model that refsd knows'}"

    @property
    def resized_as(self) -> str:
        """The models whose layers it names in other sizes, the first few."""
        return _joined((*self.resized[:_NAMED], *(["others"] if len(self.resized) > _NAMED else [])), "or")

    @property
    def candidates(self) -> str:
        """The models that it may be for, as "FLUX.1 or Chroma"."""
        return _joined(self.models, "or")


def survey_adapter(shapes: Mapping[str, Shape]) -> AdapterSurvey | None:
    """Identify an adapter file by its tensor names and shapes; None if no name is part of an adapter."""
    embeddings = dict.fromkeys(name for tensor in shapes if (name := bundled_embedding(tensor)) is not None)
    shapes = {name: shape for name, shape in shapes.items() if bundled_embedding(name) is None}
    named = {name: parted for name in shapes if (parted := split(name)) is not None}
    if not any(part in _TELLING for _, part in named.values()):
        return None
    modules: dict[str, dict[str, str]] = {}
    for name, (module, part) in named.items():
        modules.setdefault(module, {})[part] = name
    models, known = _matching({title: _fitting(modules, shapes, title) for title in MODELS}, modules, len(shapes))
    named_alike = {} if models else {title: modules.keys() & _layers(title) for title in MODELS}
    resized, alike = _matching(named_alike, modules, len(shapes))
    kinds = [_kind(modules[module], shapes) for module in modules if not known or module in known]
    matched = known or alike
    usable = {name for module in matched if _kind(modules[module], shapes) for name in modules[module].values()}
    unknown = tuple(name for name in shapes if name not in usable)
    kind = _joined(dict.fromkeys(filter(None, kinds)), "and") or _half(part for _, part in named.values())
    return AdapterSurvey(kind, models, len(known), unknown, tuple(embeddings), resized)


def _matching(
    there: Mapping[str, set[str]], modules: Mapping[str, Mapping[str, str]], tensors: int
) -> tuple[tuple[str, ...], set[str]]:
    """Return the models that know most modules of a file, and these; none if they hold less than half of it.

    there:   model -> the modules that it knows
    tensors: how many the file has
    """
    most = max(map(len, there.values()), default=0)
    best = {title: known for title, known in there.items() if len(known) == most > 0}
    known = next(iter(best.values()), set())
    parts = sum(len(modules[module]) for module in known)
    return (tuple(best), known) if 2 * parts >= tensors else ((), set())


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
    rows, taps = target.count or weight[0], math.prod(weight[2:])
    columns = weight[1] if len(weight) > 1 else 0
    inputs = columns * taps
    held = {part: tuple(shape) for part, shape in parts.items() if 0 not in shape}
    core = "hada_t1" in held
    # Part -> the layer's number that one of its axes has.
    axes = {
        "up": (0, rows),
        "down": (1, columns),
        "hada_w1_a": (1, rows) if core else (0, rows),
        "hada_w1_b": (1, columns if core else inputs),
        "diff": (0, rows),
        "a1": (0, columns),
        "a2": (1, columns),
        "b1": (0, rows),
        "b2": (1, columns),
    }
    pairs = [(held[part][axis], n) for part, (axis, n) in axes.items() if len(held.get(part, ())) > axis]
    pairs += [(math.prod(held[part]), rows) for part in ("magnitude", "boft_s", "w_norm") if part in held]
    for part in ("dora_scale", "weight", "ia3_l"):  # of the outputs, or of the inputs
        n = math.prod(held.get(part, (rows,)))
        pairs.append((n, columns if n == columns else rows))
    one, other = (_kronecker_factor(held, factor, taps) for factor in ("lokr_w1", "lokr_w2"))
    if one is not None and other is not None:
        pairs += [(one[0] * other[0], rows), (one[1] * other[1], columns)]
    if len(blocks := held.get("oft_blocks", ())) in (3, 4):
        pairs.append((blocks[-3] * blocks[-1], rows))
    if len(blocks := held.get("boft_r", ())) == 4:
        pairs.append((blocks[1] * blocks[3], inputs))
    if len(blocks := held.get("oft_r", ())) == 2:
        size = (1 + math.isqrt(1 + 8 * blocks[1])) // 2
        pairs.append((inputs % size, 0) if blocks[0] == 1 else (blocks[0] * size, inputs))
    return all(found == expected for found, expected in pairs)


def _kronecker_factor(parts: Mapping[str, Shape], factor: str, taps: int) -> tuple[int, int] | None:
    """Return the rows and columns of a LoKr's factor, whole or of two parts; None if it is incomplete."""
    whole, a, b = (parts.get(f"{factor}{end}", ()) for end in ("", "_a", "_b"))
    if len(whole) > 1:
        return whole[0], whole[1]
    if len(a) < 2 or len(b) < 2:
        return None
    if factor == "lokr_w2" and "lokr_t2" in parts:
        return a[1], b[1]
    return a[0], b[1] // (taps if factor == "lokr_w2" and len(b) == 2 and b[1] % taps == 0 else 1)


def _kind(parts: Mapping[str, str], shapes: Mapping[str, Shape]) -> str | None:
    """Return an adapter's title of TITLES, or "DoRA", "LoKr with DoRA" or "BOFT"; None if parts are missing."""
    kind = kind_of(parts)
    if kind is None:
        return None
    if parts.keys() & _DECOMPOSED:
        return "DoRA" if kind == "lora" else f"{TITLES[kind]} with DoRA"
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
