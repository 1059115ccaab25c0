"""The card of an adapter file: kind, ranks, scale, trainer, models, and what is odd about it."""

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.diagnosis.statistics import Statistics
from refsd.files.stored import Weights
from refsd.golden.wording import counted
from refsd.kernels.adapters.scales import alpha_over_rank, alpha_over_root
from refsd.networks.dimensions import Shape
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.weights.adapter_names import split
from refsd.weights.adapter_settings import PREFIX, of_module, read_settings
from refsd.weights.adapters import OTHERS
from refsd.weights.checkpoint import Checkpoint
from refsd.weights.culprits import Finding
from refsd.weights.name_groups import few

# alpha / rank beyond which nobody trains. kohya's default alpha of 1 at rank 128 is 0.008, PEFT's 2 rank is 2.
_LARGEST, _SMALLEST = 32.0, 1 / 2048
# Part -> axis of its shape that is the rank.
_RANKS = {
    "down": 0,
    "up": 1,
    "a2": 0,
    "a1": 1,
    "b2": 0,
    "b1": 1,
    "hada_w1_b": 0,
    "hada_w2_b": 0,
    "lokr_w1_b": 0,
    "lokr_w2_b": 0,
}
# Parts of a product: if one of them is zero, so is the change.
_FACTORS = (
    *("down", "up", "mid"),
    *(f"hada_{part}" for part in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")),
    *(f"lokr_{part}" for part in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2")),
)
# Parts that are a change by themselves.
_CHANGES = ("oft_blocks", "oft_r", "boft_r", "weight", "diff", "diff_b", "w_norm", "b_norm", "up_bias")
# Change over a weight's usual size, 1 / sqrt(inputs), below which no type of 16 bits holds it.
_FAINT = 1e-5
# Parts that must have the same rank.
_PARTNERS = (("down", "up"), ("hada_w1_b", "hada_w2_b"), ("a1", "a2"), ("b1", "b2"))
# (key of the metadata, text in its value, trainer); the first that matches counts.
_METADATA = (
    ("software", "ai-toolkit", "ai-toolkit"),
    ("ot_branch", "", "OneTrainer"),
    ("ot_config", "", "OneTrainer"),
    ("ss_network_module", "lycoris", "LyCORIS in kohya's sd-scripts"),
    ("ss_network_module", "", "kohya's sd-scripts"),
    ("ss_base_model_version", "", "kohya's sd-scripts"),
    ("lora_adapter_metadata", "", "diffusers with PEFT"),
)
# (beginning of a name, text in it, trainer) for files whose metadata do not tell.
_NAMES = (
    ("", ".processor.qkv_lora", "XLabs"),
    ("", ".processor.to_q_lora", "diffusers before PEFT"),
    ("", ".lora_linear_layer.", "diffusers before PEFT"),
    ("lycoris_", "", "LyCORIS"),
    ("lora_transformer_", "", "OneTrainer"),
    ("lora_", "", "kohya's sd-scripts, or one with its names"),
    (PREFIX, "", "PEFT"),
    ("diffusion_model.", ".lora_", "ai-toolkit, or another with ComfyUI's names"),
    ("", ".lora_A.", "diffusers with PEFT"),
)


class Module(NamedTuple):
    """One adapted layer: its parts' names in the file and shapes, its rank, alpha, and the factor on its delta."""

    name: str
    parts: Mapping[str, str]
    shapes: Mapping[str, Shape]
    rank: int | None
    alpha: float | None
    scale: float | None


class Card(NamedTuple):
    """What an adapter file is.

    trainer: the program that wrote it, by metadata or names; None if neither tells
    ranks:   rank -> number of layers
    scales:  alpha / rank, or as the settings have it -> number of layers
    modules: the adapted layers
    """

    trainer: str | None
    ranks: dict[int, int]
    scales: dict[float, int]
    findings: list[Finding]
    modules: list[Module]


def card(checkpoint: Checkpoint) -> Card:
    """Read an adapter file's names, shapes, alphas and settings."""
    (weights, *_) = checkpoint.files
    try:
        settings = read_settings(Path(checkpoint.path), weights)
        refused = []
    except BadInput as error:
        text = str(error).removeprefix(f"{checkpoint.path}: ")
        settings, refused = {}, [Finding("settings", text, ())]
    modules = _modules(weights, settings)
    ranks = Counter(m.rank for m in modules if m.rank is not None)
    scales = Counter(round(m.scale, 6) for m in modules if m.scale is not None)
    findings = [
        *_scales(modules),
        *_without_alpha(modules),
        *_ranks(modules),
        *_halves(modules),
        *refused,
        *_unmatched(checkpoint),
    ]
    return Card(_trainer(weights), dict(ranks.most_common()), dict(scales.most_common()), findings, modules)


def _modules(weights: Weights, settings: Mapping[str, dict[str, Any]]) -> list[Module]:
    parts: dict[str, dict[str, str]] = {}
    for name in weights:
        module, part = split(name) or ("", "")
        if part:
            parts.setdefault(module, {})[part] = name
    found = []
    for module, of in parts.items():
        shapes = {part: weights.headers[name].shape for part, name in of.items()}
        ranks = [shapes[part][axis] for part, axis in _RANKS.items() if len(shapes.get(part, ())) > axis]
        own = next((given for given in settings.values() if given), {})
        its = of_module(own, module.removeprefix(PREFIX))
        alpha = _alpha(weights, of["alpha"]) if "alpha" in of else its.alpha
        rank = ranks[0] if ranks else None
        scale = None
        if rank and alpha is not None:
            rooted = its.rslora and "alpha" not in of
            scale = alpha_over_root(alpha, rank) if rooted else alpha_over_rank(alpha, rank)
        found.append(Module(module, of, shapes, rank, alpha, scale))
    return found


def _alpha(weights: Weights, name: str) -> float | None:
    header = weights.headers[name]
    if math.prod(header.shape) != 1 or not weights.is_readable(name):
        return None
    return float(np.asarray(weights[name].values(), np.float64).reshape(()))


def _trainer(weights: Weights) -> str | None:
    metadata = {key: str(value) for key, value in weights.metadata.items()}
    for key, text, trainer in _METADATA:
        if key in metadata and text in metadata[key]:
            return trainer
    for start, text, trainer in _NAMES:
        if any(name.startswith(start) and text in name for name in weights):
            return trainer
    return None


def _scales(modules: list[Module]) -> list[Finding]:
    """Find factors that nobody trains with, and layers whose alpha is not the others'."""
    odd = [m for m in modules if m.scale is not None and not _SMALLEST <= abs(m.scale) <= _LARGEST]
    found = []
    if odd:
        first = odd[0]
        where = printable(first.parts.get("alpha", first.name), 120)
        all_ = f"in all {len(modules)} layers" if len(odd) == len(modules) > 1 else where
        more = f" and {len(odd) - 1} more" if 1 < len(odd) < len(modules) else ""
        effect = f"multiplies the change by {first.scale:g}" if first.scale else "switches the adapter off"
        text = f"outlandish alpha: {first.alpha:g} at rank {first.rank} {effect}, {all_}{more}"
        usual = Counter(m.alpha for m in modules if m not in odd).most_common(1)
        text += f"; {counted(usual[0][1], 'other layer')} have {usual[0][0]:g}" if usual and usual[0][0] else ""
        found.append(Finding("alpha", text, tuple(m.parts.get("alpha", m.name) for m in odd), sure=False))
    return found


def _without_alpha(modules: list[Module]) -> list[Finding]:
    """Find the few layers without an alpha: engines take the rank for it, a factor of 1."""
    lost = [m for m in modules if m.rank and m.alpha is None]
    usual = Counter(round(m.scale, 6) for m in modules if m.scale is not None).most_common(1)
    if not lost or not usual or usual[0][1] < OTHERS * len(lost) or usual[0][0] == 1:
        return []
    (scale, n), more = usual[0], f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    text = f"no alpha: {printable(lost[0].name, 120)}{more} counts 1, the {counted(n, 'other layer')} {scale:g}"
    return [Finding("alpha", text, tuple(m.name for m in lost), sure=False)]


def effects(modules: list[Module], read: Mapping[str, Statistics]) -> list[Finding]:
    """Find layers that the adapter does not change, or so little that no type of 16 bits holds it.

    read: tensor name in the file -> its statistics
    """
    idle: dict[str, list[str]] = {}
    faint: dict[str, float] = {}
    for m in modules:
        of = {part: read[name] for part, name in m.parts.items() if name in read}
        zero = [part for part in of if part in (*_FACTORS, *_CHANGES) and _size(of[part]) == 0]
        kept = [part for part in of if part in _CHANGES and part not in zero]
        if zero and not kept and not m.parts.keys() & {"dora_scale", "magnitude", "rescale", "boft_s"}:
            idle.setdefault(zero[-1], []).append(m.parts[zero[-1]])
        elif {"down", "up"} <= of.keys() and not zero and not kept and m.rank and m.scale != 0:
            inputs = math.prod(m.shapes["down"][1:])
            size = _size(of["down"]) * _size(of["up"]) * math.sqrt(m.rank * inputs) * abs(m.scale or 1.0)
            if size < _FAINT:
                faint[m.parts["up"]] = size
    found = []
    total = counted(len(modules), "layer")
    for part, names in idle.items():
        where = f"all {total}" if len(names) == len(modules) else f"{len(names)} of {total}"
        what = names[0].removeprefix(next(m.name for m in modules if names[0] in m.parts.values())).strip(".")
        some = "" if len(names) == len(modules) else f": {few([printable(name, 120) for name in names])}"
        text = f"changes nothing in {where}: {printable(what or part, 60)} is zero{some}"
        found.append(Finding("idle", text, tuple(names), sure=False))
    if faint:
        where = f"all {total}" if len(faint) == len(modules) else f"{len(faint)} of {total}"
        name, least = min(faint.items(), key=lambda item: item[1])
        text = f"changes next to nothing in {where}: {least:.2g} of a weight's usual size at {printable(name, 120)}"
        found.append(Finding("faint", text, tuple(faint), sure=False))
    return found


def _size(of: Statistics) -> float:
    """Return the root mean square."""
    return math.hypot(of.mean, of.deviation) if of.low or of.high or of.bad else 0.0


def _ranks(modules: list[Module]) -> list[Finding]:
    """Find layers whose two factors have different ranks: they cannot be multiplied."""
    wrong = []
    for m in modules:
        for one, other in _PARTNERS:
            a, b = m.shapes.get(one, ()), m.shapes.get(other, ())
            if len(a) > _RANKS[one] and len(b) > _RANKS[other] and a[_RANKS[one]] != b[_RANKS[other]]:
                wrong.append((m, one, other))
    if not wrong:
        return []
    m, one, other = wrong[0]
    ranks = m.shapes[one][_RANKS[one]], m.shapes[other][_RANKS[other]]
    usual = Counter(o.rank for o in modules if o is not m).most_common(1)
    culprit, partner = (one, other) if usual and ranks[1] == usual[0][0] else (other, one)
    names = printable(m.parts[culprit], 120), printable(m.parts[partner], 120)
    text = (
        f"wrong rank in {counted(len(wrong), 'layer')}: {names[0]} is {list(m.shapes[culprit])}, "
        f"{names[1]} {list(m.shapes[partner])}"
    )
    return [Finding("rank", text, tuple(m.parts[part] for m, *of in wrong for part in of))]


def _halves(modules: list[Module]) -> list[Finding]:
    """Find layers that lack one of their two factors."""
    half = [m for m in modules if any((one in m.parts) != (other in m.parts) for one, other in _PARTNERS)]
    if not half:
        return []
    names = [printable(name, 120) for m in half for part, name in m.parts.items() if part in _RANKS]
    text = f"half an adapter in {counted(len(half), 'layer')}: {few(names)} without the other factor"
    return [Finding("missing", text, tuple(names))]


def _unmatched(checkpoint: Checkpoint) -> list[Finding]:
    adapter = checkpoint.adapter
    assert adapter is not None
    if not adapter.models and adapter.resized:
        text = f"no released model has its sizes: its layers are named as those of {adapter.resized_as}"
        misses = f"{counted(len(adapter.unknown), 'tensor')} unmatched: "
        misses += f"{few([printable(name, 120) for name in adapter.unknown])}, of no layer of {adapter.resized_as}"
        return [Finding("unmatched", f"{misses}; {text}" if adapter.unknown else text, adapter.unknown, sure=False)]
    if not adapter.models:
        names = few([printable(name, 120) for name in adapter.unknown])
        return [Finding("unmatched", f"layers of no model that refsd knows: {names}", adapter.unknown, sure=False)]
    if not adapter.unknown:
        return []
    names = few([printable(name, 120) for name in adapter.unknown])
    text = f"{counted(len(adapter.unknown), 'tensor')} unmatched: {names}, of no layer of {adapter.candidates}"
    return [Finding("unmatched", text, adapter.unknown, sure=False)]
