"""Read adapter files: map each trainer's name of a layer to the layer of the original checkpoint."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.files.finite import not_finite
from refsd.files.formats import open_weights
from refsd.files.stored import Weights, shown
from refsd.kernels.adapters import Adapter
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.adapter_kinds import Misfit, Parts, build
from refsd.weights.adapter_names import ADAPTED, Target, aliases, bundled_embedding, split
from refsd.weights.adapter_rules import TRAINER
from refsd.weights.adapter_settings import of_component, of_module, read_settings
from refsd.weights.checkpoint import Checkpoint
from refsd.weights.culprits import NO_WEIGHTS
from refsd.weights.name_groups import few

_INTEGERS = ("on_input", "alpha", "scaled_oft")
# An alpha is lost if so many times as many layers have one.
OTHERS = 4


class AdapterFile(NamedTuple):
    """An adapter file whose tensor names are matched to a checkpoint's layers.

    targets:  layer -> part of its adapter -> tensor name in the file
    settings: PEFT's settings, as adapter_settings.read_settings returns them
    rule:     one of adapter_rules.NAMES
    """

    weights: Weights
    targets: dict[Target, dict[str, str]]
    settings: dict[str, dict[str, Any]]
    rule: str = TRAINER


def open_adapters(path: str | Path, checkpoint: Checkpoint, rule: str = TRAINER) -> AdapterFile:
    """Read an adapter file's header and PEFT's settings, and find the checkpoint's layer for each tensor name.

    Raises BadInput, in one line that lists the first of them, for names that are no part of an adapter or match no
    layer of the checkpoint; and for settings that refsd does not compute.
    """
    weights = open_weights(path)
    settings = read_settings(Path(path), weights)
    held = {name: component for name, component in checkpoint.components.items() if name in ADAPTED}
    layers = aliases(
        {name: c.size for name, c in held.items()},
        {name: c.weights.shapes for name, c in held.items()},
    )
    title = checkpoint.family.title if checkpoint.family else "this checkpoint"
    targets: dict[Target, dict[str, str]] = {}
    unknown, twice = [], []
    embeddings = dict.fromkeys(name for tensor in weights if (name := bundled_embedding(tensor)) is not None)
    if embeddings:
        warnings.warn(
            f"{path}: left out: the textual inversions in it, {', '.join(map(shown, embeddings))}; for its words, "
            "save them as files of their own and give these with --embd-dir",
            stacklevel=2,
        )
    for name in weights:
        if bundled_embedding(name) is not None:
            continue
        module, part = split(name) or ("", "")
        target = layers.get(module)
        if target is None:
            unknown.append(shown(name))
        elif targets.setdefault(target, {}).setdefault(part, name) != name:
            twice.append(shown(name))
    for what, names in (
        (f"name no layer of {title}, or no part of an adapter", unknown),
        ("come twice", twice),
    ):
        if names:
            raise BadInput(f"{path}: {len(names)} of {len(weights)} tensors {what}: {few(names)}")
    if not targets:
        raise BadInput(f"{path}: no tensors; an adapter of {title} expected")
    having = sum("alpha" in parts for parts in targets.values())
    lost = [parts["down"] for parts in targets.values() if "down" in parts and "alpha" not in parts]
    if lost and having >= OTHERS * len(lost):
        what = f"no alpha beside {few([shown(name) for name in lost])}; the {having} other layers have one"
        warnings.warn(f"{path}: {what}: `refsd info` says what that changes", stacklevel=2)
    return AdapterFile(weights, targets, settings, rule)


def build_adapters(
    file: AdapterFile,
    component: str,
    shapes: Mapping[str, tuple[int, ...]],
    expand: Callable[[StoredTensor], np.ndarray],
    strength: float = 1.0,
) -> dict[Target, Adapter]:
    """Build the adapters of one component; `expand` turns each stored tensor into an array.

    Raises BadInput, in one line that lists all of them, for parts that do not fit their layers or are not finite,
    and for kinds of adapter that the file's rule does not load, or does not load at this strength.
    """
    found: dict[Target, Adapter] = {}
    misfits = []
    before, settings = of_component(file.settings, component)
    for target, names in file.targets.items():
        key = target.key
        if target.component != component:
            continue
        try:
            tensors = {part: _read(file.weights, part, name) for part, name in names.items()}
            if f"{key}.weight" not in shapes:
                raise Misfit("a layer that this checkpoint does not have")
            if tensors.keys() & {"diff_b", "b_norm"} and f"{key}.bias" not in shapes:
                raise Misfit("a difference for a bias that the layer does not have")
            rows, *columns = shapes[f"{key}.weight"]
            module, _ = split(next(iter(names.values()))) or ("", "")
            its_settings = of_module(settings, module.removeprefix(before))
            parts = Parts(tensors, (target.count or rows, *columns), expand, its_settings, file.rule)
            found[target] = build(parts)
            if strength != 1 and parts.kind in parts.rule.fixed:
                raise Misfit(f"{parts.kind} at strength {strength:g}: {parts.rule.title} knows 1 alone")
        except Misfit as misfit:
            misfits.append(f"{component} {key}: {misfit}")
    if misfits:
        raise BadInput(f"{file.weights.path}: {len(misfits)} adapters do not fit: {few(misfits, between='; ')}")
    return found


def _read(weights: Weights, part: str, name: str) -> StoredTensor:
    header = weights.headers[name]
    if header.type in NO_WEIGHTS and part not in _INTEGERS:
        raise Misfit(f"{part} is {header.type}")
    tensor = weights[name]
    bad = not_finite(tensor)
    if bad:
        raise Misfit(f"{bad} values of {part} are NaN or infinite")
    return tensor
