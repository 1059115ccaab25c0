"""What the shapes do not tell: heads, groups, activations; from config.json, else as released models have it."""

from pathlib import Path
from typing import Any

from refsd.networks import NETWORKS
from refsd.networks.config import shown_value
from refsd.networks.dimensions import Shapes
from refsd.numerics.errors import BadInput


def component_config(component: str, path: Path, shapes: Shapes, config: dict[str, Any] | None) -> dict[str, Any]:
    """What a component's model needs besides its weights.

    shapes: of its tensors, under the original's names
    config: the content of config.json at `path`, or None
    Raises BadInput for a field that is no such thing, or that asks for what refsd does not compute.
    """
    network, given = NETWORKS[component], config or {}
    for inner in network.nested:
        fields = given.get(inner) or {}
        if not isinstance(fields, dict):
            raise BadInput(f"{path}: {inner} is {shown_value(fields)}; a JSON object expected")
        given = fields if fields and inner == "text_config" else {**given, **fields}
    for field, values in network.computed.items():
        found = given.get(field, values[0])
        if not any(type(found) is not dict and found == value for value in values):
            computed = " or ".join(map(str, values))
            raise BadInput(f"{path}: {field} is {shown_value(found)}; refsd computes {computed} only")
    return network.config(path, shapes, given)
