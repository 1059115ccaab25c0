"""Open the adapter files of a command line, and apply them to a component's layers."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.adapters import Adapters, Applied
from refsd.kernels.adapters import Adapter, LoHa, LoKr, LoRA
from refsd.kernels.adapters.scales import alpha_over_rank, lokr_scale_sdcpp, rank_sdcpp
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.adapter_rules import NAMES, RULES, TRAINER
from refsd.weights.adapters import AdapterFile, build_adapters, open_adapters
from refsd.weights.checkpoint import Checkpoint


class Lora(NamedTuple):
    """An adapter file and its strength, from a command-line argument FILE or FILE:STRENGTH."""

    path: Path
    strength: float


def parse(argument: str) -> Lora:
    """Parse FILE or FILE:STRENGTH. Raises BadInput if the text after the last colon is no number."""
    path, colon, strength = argument.rpartition(":")
    if not colon or not path or "/" in strength or "\\" in strength:
        return Lora(Path(argument), 1.0)
    try:
        value = float(strength)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise BadInput(f"--lora {argument}: expected FILE or FILE:STRENGTH, and a number for a strength")
    return Lora(Path(path), value)


def load(
    loras: Iterable[tuple[AdapterFile, float]],
    component: str,
    weights: Mapping[str, StoredTensor],
    arithmetic: Arithmetic,
) -> Adapters | None:
    """Build the adapters of all files for one component; None if there are none. Raises BadInput."""
    shapes = getattr(weights, "shapes", None) or {name: tensor.shape for name, tensor in weights.items()}
    layers: dict[str, list[Applied]] = {}
    for file, strength in loras:
        built = build_adapters(file, component, shapes, arithmetic.expand, strength)
        for target, adapter in built.items():
            kind = file.weights.headers[next(iter(file.targets[target].values()))].type
            in_turn = file.rule in RULES and RULES[file.rule].in_turn
            applied = Applied(_deviating(adapter, arithmetic), strength, kind, target, in_turn)
            layers.setdefault(target.key, []).append(applied)
    return Adapters(layers, arithmetic) if layers else None


def open_loras(
    arguments: Iterable[str], checkpoint: Checkpoint, rule: str = TRAINER
) -> list[tuple[AdapterFile, float]]:
    """Open the adapter files of command-line arguments, with their strengths. Raises BadInput."""
    if rule not in NAMES:
        raise BadInput(f"--lora-rule {rule}: expected one of {', '.join(NAMES)}")
    return [(open_adapters(path, checkpoint, rule), strength) for path, strength in map(parse, arguments)]


def _deviating(adapter: Adapter, arithmetic: Arithmetic) -> Adapter:
    """Replace an adapter's scale by the engine's rule, if the engine declares the deviation rank_one_is_columns."""
    columns = _columns_of_one_row(adapter)
    if columns is None or not arithmetic.parameter("adapter", "rank_one_is_columns", False):
        return adapter
    counted = rank_sdcpp(1, columns)
    if isinstance(adapter, LoKr):
        return adapter._replace(scale=lokr_scale_sdcpp(adapter.scale, counted))
    assert isinstance(adapter, LoRA | LoHa)
    return adapter._replace(scale=alpha_over_rank(adapter.scale, counted or 1))


def _columns_of_one_row(adapter: Adapter) -> int | None:
    """Return the columns of the part with `rank` rows, if the rank is 1 (so that the scale is alpha); else None."""
    if isinstance(adapter, LoRA) and len(adapter.down) == 1:
        return adapter.down.shape[1]
    if isinstance(adapter, LoHa) and len(adapter.w1_b) == 1:
        return adapter.w1_b.shape[1]
    if isinstance(adapter, LoKr) and adapter.rank == 1:
        factored = adapter.w1 if isinstance(adapter.w2, np.ndarray) else adapter.w2
        return factored[1].shape[1]
    return None
