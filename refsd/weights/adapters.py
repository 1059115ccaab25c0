"""Adapter files: from whatever a trainer calls a layer to the layer of the original checkpoint."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.errors import BadInput
from refsd.golden.tensor import StoredTensor
from refsd.kernels.adapters import Adapter
from refsd.weights.adapter_kinds import Misfit, Parts, build
from refsd.weights.adapter_names import NAMINGS, Target, aliases, split
from refsd.weights.checkpoint import Checkpoint
from refsd.weights.detect import DENOISERS
from refsd.weights.files import open_weights, read_json
from refsd.weights.finite import not_finite
from refsd.weights.problems import NO_WEIGHTS
from refsd.weights.stored import Weights, shown

_LLMS = ("qwen3", "mistral")
_PEFT = ("LORA", "LOHA", "LOKR", "OFT", "BOFT", "IA3")
# Settings of adapter_config.json that change the arithmetic in a way that refsd does not know.
_UNREAD = ("alpha_pattern", "fan_in_fan_out", "use_qalora")
_INTEGERS = ("on_input", "alpha")
# Numbers among them, and what they stay below.
_LARGEST = {"lora_alpha": 1e9, "alpha": 1e9, "r": 1e6, "num_cayley_neumann_terms": 100}


class AdapterFile(NamedTuple):
    """
    targets:  layer -> part -> name in the file
    settings: PEFT's adapter_config.json, or diffusers' metadata: component -> settings
    """

    weights: Weights
    targets: dict[Target, dict[str, str]]
    settings: dict[str, dict[str, Any]]


def open_adapters(path: str | Path, checkpoint: Checkpoint) -> AdapterFile:
    """Read an adapter file's header, and find each name's layer in the checkpoint.

    Raises BadInput, in one line that lists all of them, for names that are no part of an adapter, or of no layer.
    """
    weights = open_weights(path)
    held = {name: component for name, component in checkpoint.components.items() if name in NAMINGS}
    layers = aliases(
        {name: c.size for name, c in held.items()},
        {name: c.weights.shapes for name, c in held.items()},
    )
    title = checkpoint.family.title if checkpoint.family else "this checkpoint"
    targets: dict[Target, dict[str, str]] = {}
    unknown, twice = [], []
    for name in weights:
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
            raise BadInput(f"{path}: {len(names)} of {len(weights)} tensors {what}: {', '.join(names)}")
    if not targets:
        raise BadInput(f"{path}: no tensors; an adapter of {title} expected")
    return AdapterFile(weights, targets, _settings(Path(path), weights))


def build_adapters(
    file: AdapterFile,
    component: str,
    shapes: Mapping[str, tuple[int, ...]],
    expand: Callable[[StoredTensor], np.ndarray],
) -> dict[Target, Adapter]:
    """The adapters of one component, their arrays from `expand`.

    Raises BadInput, in one line that lists all of them, for parts that do not fit their layers or are not finite.
    """
    found: dict[Target, Adapter] = {}
    misfits = []
    for target, names in file.targets.items():
        key = target.key
        if target.component != component:
            continue
        try:
            tensors = {part: _read(file.weights, part, name) for part, name in names.items()}
            if f"{key}.weight" not in shapes:
                raise Misfit("a layer that this checkpoint does not have")
            settings = _of_module(file.settings.get(component, {}), next(iter(names.values())))
            if tensors.keys() & {"diff_b", "b_norm"} and f"{key}.bias" not in shapes:
                raise Misfit("a difference for a bias that the layer does not have")
            rows, *columns = shapes[f"{key}.weight"]
            found[target] = build(Parts(tensors, (target.count or rows, *columns), settings, expand))
        except Misfit as misfit:
            misfits.append(f"{component} {key}: {misfit}")
    if misfits:
        raise BadInput(f"{file.weights.path}: {len(misfits)} adapters do not fit: {'; '.join(misfits)}")
    return found


def _of_module(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """IA3's list of modules that scale their input, as a yes or no."""
    modules = settings.get("feedforward_modules")
    listed = isinstance(modules, list) and any(f"{name}.".find(f".{m}.") >= 0 for m in modules)
    return {**settings, "feedforward": listed} if settings else settings


def _read(weights: Weights, part: str, name: str) -> StoredTensor:
    header = weights.headers[name]
    if header.type in NO_WEIGHTS and part not in _INTEGERS:
        raise Misfit(f"{part} is {header.type}")
    tensor = weights[name]
    bad = not_finite(tensor)
    if bad:
        raise Misfit(f"{bad} values of {part} are NaN or infinite")
    return tensor


def _settings(path: Path, weights: Weights) -> dict[str, dict[str, Any]]:
    """PEFT keeps alpha and its variants beside the file, diffusers in the file's metadata."""
    config = path.with_name("adapter_config.json")
    metadata = weights.metadata.get("lora_adapter_metadata")
    if isinstance(metadata, str):
        try:
            flat = json.loads(metadata)
        except (ValueError, RecursionError):
            raise BadInput(
                f"{path}: lora_adapter_metadata in the header is not JSON; export the file again"
            ) from None
        names = {"text_encoder": ("clip", *_LLMS), "text_encoder_2": ("clip_g", "t5"), "text_encoder_3": ("t5",)}
        found: dict[str, dict[str, Any]] = {}
        for name, value in flat.items() if isinstance(flat, dict) else ():
            component, _, setting = name.partition(".")
            for of in names.get(component, DENOISERS):
                found.setdefault(of, {})[setting] = value
    elif config.is_file() and any(name.startswith("base_model.model.") for name in weights):
        read = read_json(config)
        found = dict.fromkeys(NAMINGS, read) if read.get("peft_type") in _PEFT else {}
    else:
        return {}
    for settings in found.values():
        for setting in _UNREAD:
            if settings.get(setting):
                raise BadInput(
                    f"{path}: {setting} in its PEFT settings: refsd does not read that; merge it with PEFT"
                )
        for setting in _LARGEST:
            value = settings.get(setting)
            if value is not None and (type(value) not in (int, float) or not 0 < value < _LARGEST[setting]):
                raise BadInput(f"{path}: {setting} in its PEFT settings is {str(value)[:40]!r}, a number expected")
    return found
