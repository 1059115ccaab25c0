"""What sd-cli's layers computed, by the reference's names: a layer is known by the weight that it reads."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from refsd.engines.sdcpp.tap import Graph, WeightHead
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

# What makes a weight known: its first numbers, or as many bytes of a block type.
_VALUES, _BYTES = 4, 16
_FLOATS = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2")}

# A weight's sides of more than 1, and how it begins: as float16, or a block type's bytes.
Key = tuple[tuple[int, ...], bytes]


def layer_taps(graphs: Iterable[Graph], weights: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
    """The results of linear layers, convolutions and norms. -> tap -> [N, ...], N graphs

    graphs:  of the same network, one for each item of the batch
    weights: the network's, by the reference's names

    sd-cli adds a bias in an operation of its own: its result is then the layer's.
    """
    known = _names(weights)
    items = [_of_graph(graph, known, weights) for graph in graphs]
    return {
        name: np.stack([item[name] for item in items])
        for name in (items[0] if items else {})
        if all(name in item and item[name].shape == items[0][name].shape for item in items)
    }


def _of_graph(graph: Graph, known: Mapping[Key, str], weights: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    calls: dict[str, int] = defaultdict(int)
    for op in graph.weighted:
        name = known.get(_key_of(op.weight))
        layer, _, part = (name or "").rpartition(".")
        last = "bias" if f"{layer}.bias" in weights else "weight"
        # A convolution without a bias ends in a transpose, which reads no weight.
        if not layer or part != last or (part == "weight" and len(weights[f"{layer}.weight"].shape) > 2):
            continue
        # A table that is added whole, as CLIP's positions, is no layer: the sum is another tensor.
        if part == "weight" and op.op == "ADD":
            continue
        # The reference names an RMSNorm, which has a weight alone, by that weight.
        if part == "weight" and len(weights[f"{layer}.weight"].shape) == 1:
            layer = f"{layer}.weight"
        again = calls[layer]
        calls[layer] += 1
        found[f"{layer}.{again}" if again else layer] = op.result
    return found


def _names(weights: Mapping[str, StoredTensor]) -> dict[Key, str]:
    """Weights by how they begin; those that begin alike are left out."""
    names: dict[Key, str] = {}
    twice = set()
    for name in weights:
        if name.endswith((".weight", ".bias")):
            key = _key(weights[name])
            twice |= {key} & names.keys()
            names[key] = name
    return {key: name for key, name in names.items() if key not in twice}


def _key(tensor: StoredTensor) -> Key:
    data = np.ascontiguousarray(tensor.data).reshape(-1)
    if tensor.type in SCALAR_TYPES:
        head = data[:_VALUES].astype(np.float16).tobytes()
    else:
        head = data[:_BYTES].tobytes()
    return tuple(n for n in tensor.shape if n != 1), head


def _key_of(weight: WeightHead) -> Key:
    shape = tuple(n for n in reversed(weight.ne) if n != 1)
    if weight.type not in _FLOATS:
        return shape, weight.head
    values = np.frombuffer(weight.head, _FLOATS[weight.type])[:_VALUES]
    return shape, values.astype(np.float16).tobytes()
