"""Name the tensors that make a file unfit: turned, swapped, renamed, foreign or missing ones, in one line each.

The network's size is what most tensors agree on (size_vote.py), so that what contradicts it is the culprit.
"""

import difflib
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from refsd.golden.wording import counted
from refsd.models.catalogue import NETWORKS
from refsd.networks.dimensions import Shape
from refsd.networks.network import Layout
from refsd.numerics.printable import printable
from refsd.weights.component import Component
from refsd.weights.name_groups import few, grouped
from refsd.weights.nearest import nearest
from refsd.weights.size_vote import published, same_shape, tail

NO_WEIGHTS = {"i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool", "c64"}
_PREFIX = re.compile(r"^(model\.diffusion_model\.|diffusion_model\.|transformer\.|model\.)")
_LIKE = 0.6  # similarity of two names, by difflib, from which one may be the other renamed
_SYSTEMATIC = 3  # tensors at least that are reshaped in one way on purpose
_COMPARED = 200  # names at most that are compared with each other


class Finding(NamedTuple):
    """What is wrong with a file, in a line.

    kind:    "transposed", "swapped", "missing", ...
    text:    one line that names the culprits
    tensors: the culprits' names in the file; for missing tensors the names that it should have
    sure:    False if somebody may have made the file so on purpose
    """

    kind: str
    text: str
    tensors: tuple[str, ...]
    sure: bool = True


class _Wrong(NamedTuple):
    """A tensor of the file with a wrong shape, and the original's name of the tensor that it makes up."""

    name: str
    ours: str
    found: Shape
    expected: Shape

    @property
    def matrix(self) -> Shape:
        """The expected shape with all but the first dimension as one."""
        return (self.expected[0], math.prod(self.expected[1:]))


def culprits(components: Iterable[Component], strays: Mapping[str, Shape]) -> list[Finding]:
    """Find what is structurally wrong; the most telling finding comes first.

    strays: tensors of the file that belong to no component -> shape
    """
    found: list[Finding] = []
    left = dict(strays)
    for component in components:
        found += _of_component(component, left)
    found += _not_ours(left)
    return sorted(found, key=lambda finding: _ORDER.index(finding.kind))


_ORDER = (
    "folded",
    "swapped",
    "transposed",
    "permuted",
    "type",
    "scale",
    "renamed",
    "shape",
    "foreign",
    "missing",
    "unknown",
)


def layout_of(component: Component) -> Layout:
    """Return the layout that a component's file has."""
    shapes = NETWORKS[component.name].shapes
    alike = [network for network in NETWORKS.values() if network.shapes is shapes]  # clip_g is found as clip
    places = [place for network in alike for place in network.places]
    return next(place.layout for place in places if place.layout.name == component.layout)


def names_in_file(component: Component) -> Callable[[str], tuple[str, ...]]:
    """Return a function from the original's tensor names to those that the component's file has, or should have."""
    keymap = layout_of(component).of_size(component.size)
    prefix = ""
    for ours, source in component.weights.sources.items():
        there = keymap.theirs(ours)
        if there is not None and source.names[0].endswith(there.names[0]):
            prefix = source.names[0].removesuffix(there.names[0])
            break

    def names(ours: str) -> tuple[str, ...]:
        if ours in component.weights:
            return component.weights.sources[ours].names
        source = keymap.theirs(ours)
        return tuple(prefix + name for name in source.names) if source else (ours,)

    return names


def _of_component(component: Component, strays: dict[str, Shape]) -> list[Finding]:
    """Return the findings of one component; strays that it explains are removed."""
    weights = component.weights
    expected = NETWORKS[component.name].shapes(component.size)
    in_file = weights.file.shapes
    names = names_in_file(component)
    wrong = [
        part
        for ours, shape in expected.items()
        if ours in weights and not same_shape(weights.shapes[ours], shape)
        for part in _wrong_parts(component, ours, shape, in_file)
        if part.name not in weights.file.unexpanded
    ]
    unused = list(component.unused)
    unused += [part for ours in weights if ours not in expected for part in weights.sources[ours].names]
    missing: dict[str, Shape] = {}
    for ours, shape in expected.items():
        if ours not in weights:
            parts = names(ours)
            rows = (shape[0] // len(parts), *shape[1:]) if shape else shape
            missing |= {part: shape if len(parts) == 1 else rows for part in parts if part not in unused}
            unused = [name for name in unused if name not in parts]
    extras = {name: in_file[name] for name in unused}
    renamed = _renamed(missing, {**extras, **{name: shape for name, shape in strays.items() if name in in_file}})
    for z, x in renamed.items():
        missing.pop(x)
        extras.pop(z, None)
        strays.pop(z, None)
    strays |= extras
    found = [*_shapes(component, wrong), *_types(component), *_scales(component), *_names(renamed)]
    if missing:
        universe = [part for ours in expected for part in names(ours)]
        found.append(_missing(component, missing, universe))
    elif not wrong and not extras and not renamed:
        lacking = nearest(component)
        if lacking is not None:
            patterns = few([_said(p) for p in grouped(lacking.names, lacking.universe)])
            lost = counted(len(lacking.names), "tensor")
            text = f"nearest: {lacking.title}; {lost} missing: {patterns}"
            found.append(Finding("missing", text, tuple(lacking.names), lacking.sure))
    return found


def _wrong_parts(component: Component, ours: str, shape: Shape, in_file: Mapping[str, Shape]) -> list[_Wrong]:
    """Return the tensors of the file that give one of ours a wrong shape; of q, k and v it may be one."""
    parts = component.weights.sources[ours].names
    if len(parts) == 1:
        found = in_file[parts[0]]
        flat = len(found) == 2 and len(shape) == 4 and shape[2:] == (1, 1) and found != shape[:2]
        return [_Wrong(parts[0], ours, found, shape[:2] if flat else shape)]
    wrong = []
    for part in parts:
        others = sum(in_file[other][0] for other in parts if other != part and in_file[other])
        rows = shape[0] - others if shape[0] > others else shape[0] // len(parts)
        if in_file[part][1:] != shape[1:]:
            wrong.append(_Wrong(part, ours, in_file[part], (rows, *shape[1:])))
    return wrong or [_Wrong(parts[0], ours, in_file[parts[0]], (shape[0] // len(parts), *shape[1:]))]


def _shapes(component: Component, wrong: list[_Wrong]) -> list[Finding]:
    """Explain tensors of a wrong shape: all folded in one way, two that are swapped, turned ones, others."""
    found = _folded(component, wrong)
    explained = {name for finding in found for name in finding.tensors}
    wrong = [w for w in wrong if w.name not in explained]
    left = list(wrong)
    for one in wrong:
        partners = [w for w in left if w.found == one.expected != one.found == w.expected]
        if one not in left or not partners:
            continue
        other = max(partners, key=lambda w: difflib.SequenceMatcher(None, one.ours, w.ours).ratio())
        left = [w for w in left if w not in (one, other)]
        turned = ", or both transposed" if one.found == one.expected[::-1] else ""
        text = (
            f"2 tensors swapped{turned}: {_said(one.name)} is {list(one.found)}, {_said(other.name)} "
            f"{list(other.found)}; {_jury(component, one)}"
        )
        found.append(Finding("swapped", text, (one.name, other.name)))
    kinds: dict[str, list[_Wrong]] = {}
    for w in left:
        turned = len(w.found) == 2 and w.found == w.expected[::-1]
        moved = len(w.found) > 2 and sorted(w.found) == sorted(w.expected)
        kinds.setdefault("transposed" if turned else "permuted" if moved else "shape", []).append(w)
    for kind, of in kinds.items():
        first, *more = of
        how = {"transposed": "transposed", "permuted": "with permuted axes", "shape": "of a wrong shape"}[kind]
        also = f"; also {few([_said(w.name) for w in more])}" if more else ""
        text = f"{counted(len(of), 'tensor')} {how}: {_said(first.name)} is {list(first.found)}, "
        found.append(Finding(kind, text + _jury(component, first) + also, tuple(w.name for w in of)))
    return found


def _folded(component: Component, wrong: list[_Wrong]) -> list[Finding]:
    """Find one reshape of many tensors: as many elements as expected, in rows of one width, matrices or one row."""
    alike = [w for w in wrong if w.found and math.prod(w.found) == math.prod(w.expected)]
    ways = {
        "flattened to one dimension": [w for w in alike if len(w.found) == 1],
        "flattened to matrices": [w for w in alike if len(w.expected) > 2 and w.found == w.matrix],
    }
    widths = Counter(w.found[-1] for w in alike if len(w.found) == 2)
    for width, _ in widths.most_common(1):
        of = [w for w in alike if len(w.found) == 2 and w.found[-1] == width]
        if sum(sorted(w.found) != sorted(w.expected) for w in of) * 2 > len(of):
            ways[f"folded into rows of {width}"] = of
    how, of = max(ways.items(), key=lambda way: len(way[1]))
    if len(of) < _SYSTEMATIC:
        return []
    first = max(of, key=lambda w: sorted(w.found) != sorted(w.expected))
    example = f"{_said(first.name)} is {list(first.found)} for {list(first.expected)}"
    text = f"{counted(len(of), 'tensor')} {how}: {example}; "
    text += "the numbers of elements fit, so only the shapes are lost: convert it again with a tool that keeps them"
    if component.weights.file.format == "gguf":
        text += ", in comfy.gguf.orig_shape.NAME"
    return [Finding("folded", text, tuple(w.name for w in of))]


def _jury(component: Component, wrong: _Wrong) -> str:
    """Say how many siblings have the expected shape."""
    shapes = component.weights.shapes
    whole = NETWORKS[component.name].shapes(component.size)[wrong.ours]
    siblings = [name for name in siblings_of(wrong.ours, shapes) if shapes[name] == whole]
    who = f"{counted(len(siblings), 'sibling')} say{'s' if len(siblings) == 1 else ''}"
    return f"{who if siblings else 'the other tensors say'} {list(wrong.expected)}"


def siblings_of(name: str, names: Iterable[str]) -> list[str]:
    """Return the tensors at the same place of other blocks; none for a tensor outside the blocks."""
    end = tail(name)
    return [other for other in names if end and other != name and tail(other) == end]


def _types(component: Component) -> list[Finding]:
    weights, found = component.weights, []
    for ours, source in weights.sources.items():
        for part in source.names:
            kind = weights.file.headers[part].type
            if kind in NO_WEIGHTS and not weights.file.has_scale(part):
                found.append((part, ours, kind))
    if not found:
        return []
    name, ours, kind = found[0]
    others = [weights.file.headers[weights.sources[n].names[0]].type for n in siblings_of(ours, weights)]
    usual = max(set(others), key=others.count, default="")
    jury = f"{counted(others.count(usual), 'sibling')} {'is' if others.count(usual) == 1 else 'are'} {usual}"
    text = f"{counted(len(found), 'tensor')} of a wrong type: {_said(name)} is {kind}, "
    names = tuple(name for name, _, _ in found)
    return [Finding("type", text + (jury if usual else "a float type expected"), names)]


def _scales(component: Component) -> list[Finding]:
    """Find 8-bit tensors without a scale beside siblings with one."""
    file = component.weights.file
    of_name = {part: ours for ours, source in component.weights.sources.items() for part in source.names}
    scaled = {name for name in of_name if file.has_scale(name)}
    lost = [name for name in of_name if file.headers[name].type.startswith("f8_") and name not in scaled]
    jury = {tail(of_name[name]) for name in scaled} - {""}
    lost = [name for name in lost if tail(of_name[name]) in jury]
    if not lost:
        return []
    kind = file.headers[lost[0]].type
    text = f"{counted(len(lost), 'scale')} lost: {few([_said(n) for n in lost])} {kind} without weight_scale; "
    return [Finding("scale", f"{text}{counted(len(scaled), 'other tensor')} have one", tuple(lost))]


def _renamed(missing: Mapping[str, Shape], extras: Mapping[str, Shape]) -> dict[str, str]:
    """Match tensors that the network lacks with left-over ones of the same shape and a like name.

    -> name in the file -> name that it should have
    """
    if len(missing) > _COMPARED or len(extras) > _COMPARED:
        return {}
    pairs = sorted(
        (-difflib.SequenceMatcher(None, x, z, autojunk=False).ratio(), z, x)
        for x, shape in missing.items()
        for z, found in extras.items()
        if same_shape(found, shape)
    )
    matched: dict[str, str] = {}
    for unlike, z, x in pairs:
        if -unlike >= _LIKE and z not in matched and x not in matched.values():
            matched[z] = x
    return matched


def _names(renamed: Mapping[str, str]) -> list[Finding]:
    if not renamed:
        return []
    changes = {_change(z, x) for z, x in renamed.items()}
    (z, x), *_ = renamed.items()
    text = f"{counted(len(renamed), 'tensor')} renamed: {_said(z)} should be {_said(x)}"
    if len(renamed) > 1 and len(changes) == 1:
        there, wanted = next(iter(changes))
        text += f', "{_said(there)}" for "{_said(wanted)}" in all'
    return [Finding("renamed", text, tuple(renamed))]


def _change(found: str, wanted: str) -> tuple[str, str]:
    """Return the parts in which two dotted names differ."""
    a, b = found.split("."), wanted.split(".")
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return ".".join(a), ".".join(b)


def _missing(component: Component, missing: Mapping[str, Shape], universe: Collection[str]) -> Finding:
    title = next((known.name for known in published(component.name) if known.size == component.size), None)
    patterns = few([_said(pattern) for pattern in grouped(missing, universe)])
    start = f"nearest: {title}; " if title else ""
    text = f"{start}{counted(len(missing), 'tensor')} missing: {patterns}"
    return Finding("missing", text if title else f"{text} ({component.name})", tuple(missing))


def _not_ours(strays: Mapping[str, Shape]) -> list[Finding]:
    """Explain tensors that belong to no component: those that another network has, and others."""
    if not strays:
        return []
    known = {} if len(strays) > 10_000 else _owners()
    left = {name: known.get(name) or known.get(_PREFIX.sub("", name)) or [] for name in strays}
    owners: dict[str, list[str]] = {}
    while left:
        votes = Counter(title for titles in left.values() for title in titles)
        top = max(votes.values(), default=0)
        most = [title for title, n in votes.items() if n == top][:2]
        names = [name for name, titles in left.items() if not most or most[0] in titles]
        owners[" or ".join(most)] = names
        explained = set(names)
        left = {name: titles for name, titles in left.items() if name not in explained}
    found = []
    for owner, names in owners.items():
        patterns = few([_said(pattern) for pattern in grouped(names, names)])
        what = "foreign tensor" if owner else "unknown tensor"
        whose = f", of {owner}" if owner else ", of no network that refsd knows"
        text = f"{counted(len(names), what)}: {patterns}{whose}"
        found.append(Finding("foreign" if owner else "unknown", text, tuple(names)))
    return found


@functools.cache
def _owners() -> dict[str, list[str]]:
    """Return the titles of the networks that have a tensor of each name, in any layout."""
    found: dict[str, list[str]] = {}
    for network in NETWORKS.values():
        for known in published(network.name):
            names = network.shapes(known.size)
            for place in network.places:
                keymap = place.layout.of_size(known.size)
                theirs = [source.names for name in names if (source := keymap.theirs(name))]
                for name in [*names, *(name for of in theirs for name in of)]:
                    if network.title not in found.setdefault(name, []):
                        found[name].append(network.title)
    return found


def _said(name: str) -> str:
    """Return a name without control characters, at most 120 characters long."""
    return printable(name, 120)
