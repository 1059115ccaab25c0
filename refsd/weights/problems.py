"""List what does not fit between a component's tensors and those of its network."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from refsd.files.stored import Weights, shown
from refsd.golden.wording import counted
from refsd.models.catalogue import NETWORKS
from refsd.networks.dimensions import Shapes
from refsd.networks.keymap import Source
from refsd.numerics.errors import BadInput
from refsd.weights.component import Component
from refsd.weights.culprits import NO_WEIGHTS, Finding, culprits
from refsd.weights.name_groups import few
from refsd.weights.size_vote import same_shape


class Problems(NamedTuple):
    """Tensors that are missing, that no network reads, and of another shape or type: a few words for each."""

    missing: list[str]
    unused: list[str]
    misshapen: list[str]


def check(component: Component) -> None:
    """Raise one BadInput that lists the component's missing, unused and misshapen tensors."""
    check_storage([component.weights.file])
    title = NETWORKS[component.name].title
    raise_problems(component.weights.file.path, title, [problems(component)], culprits([component], {}))


def problems(component: Component) -> Problems:
    """Compare a component's tensors with those of its network, at the size inferred from the shapes."""
    weights = component.weights
    expected = NETWORKS[component.name].shapes(component.size)
    missing = [f"{component.name} {shown(name)} {list(expected[name])}" for name in expected if name not in weights]
    unused = [f"{component.name} {shown(name)}" for name in component.unused]
    unused += [
        f"{component.name} {shown(weights.sources[name].names[0])}" for name in weights if name not in expected
    ]
    misshapen = []
    for name, shape in weights.shapes.items():
        parts = [part for part in weights.sources[name].names if not weights.file.has_scale(part)]
        kinds = {weights.file.headers[part].type for part in parts}
        packed = any(part in weights.file.unexpanded for part in weights.sources[name].names)
        if name in expected and not packed and not same_shape(shape, expected[name]):
            misshapen.append(f"{component.name} {shown(name)} {list(shape)} for {list(expected[name])}")
        elif name in expected and kinds & NO_WEIGHTS:
            misshapen.append(f"{component.name} {shown(name)} of type {', '.join(kinds)} for a float type")
    return Problems(missing, unused, misshapen)


def storages(files: Iterable[Weights], which: Literal["expanded", "unexpanded"]) -> dict[str, list[str]]:
    """Return each storage that refsd recognises, and expands or cannot, with its tensors."""
    found: dict[str, list[str]] = {}
    for weights in files:
        for name, storage in getattr(weights, which).items():
            found.setdefault(storage, []).append(name)
    return found


def check_storage(files: Iterable[Weights]) -> None:
    """Raise BadInput for a file with tensors whose storage refsd cannot expand."""
    for weights in files:
        for storage, names in storages([weights], "unexpanded").items():
            raise BadInput(
                f"{weights.path}: {counted(len(names), 'tensor')} {storage}, which refsd cannot expand: "
                f"{few([shown(name) for name in names])}; use the file in another storage"
            )


def check_order(component: str, weights: Weights, sources: Mapping[str, Source]) -> None:
    """Raise BadInput for a GGUF file whose shapes fit only if all are reversed.

    sources: canonical name -> tensors of the file that it is made of
    """
    if weights.format != "gguf":
        return
    there = weights.shapes
    turned = {name: shape[::-1] for name, shape in there.items()}
    as_they_are, reversed_ = ({name: s.shape(of) for name, s in sources.items()} for of in (there, turned))
    if not _fits(component, as_they_are) and _fits(component, reversed_):
        raise BadInput(
            f"{weights.path}: its dimensions are stored in the wrong order (outermost first): GGUF stores the "
            "innermost first; convert the file again"
        )


def _fits(component: str, shapes: Shapes) -> bool:
    """Check that all tensors of the network, at the size inferred from `shapes`, are present in their shapes."""
    table = NETWORKS[component]
    expected = table.shapes(table.size(shapes))
    return all(name in shapes and same_shape(shapes[name], shape) for name, shape in expected.items())


def raise_problems(path: object, title: str, lists: Sequence[Problems], findings: Sequence[Finding]) -> None:
    """Raise one BadInput that names the culprits and lists all problems, if there are any.

    Findings that may be somebody's intention alone become a warning.
    """
    found = []
    for word, of_all in zip(Problems._fields, zip(*lists, strict=True), strict=True):
        entries = [entry for of_one in of_all for entry in of_one]
        if entries:
            more = ", ..." if len(entries) > 10 else ""
            found.append(f"{len(entries)} {word}: {', '.join(entries[:10])}{more}")
    named = "; ".join(finding.text for finding in findings)
    if found:
        raise BadInput(f"{path}: {named}: the tensors do not fit {title}: {'; '.join(found)}")
    if any(finding.sure for finding in findings):
        raise BadInput(f"{path}: {named}; `refsd info` tells more")
    if findings:
        warnings.warn(f"{path}: {named}", stacklevel=2)
