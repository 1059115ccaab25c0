"""Name what a graph computes by the module tree: blocks.3.attn.to_q, and blocks.3.attn.attention inside of attn.

Torch's exporter writes each node's modules into its metadata; another exporter may write a path as the node's name.
"""

import ast
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from refsd.adoption.tidying import SCOPES
from refsd.onnx.evaluate import evaluate
from refsd.onnx.evaluate.file import Model
from refsd.taps import Taps

# Metadata of a node: the taps that its output is, as JSON.
_NAMES = "refsd.taps"
# Difference of projections, relative to the norm, up to which two tensors are one.
_SAME = 1e-5

# Nodes that move values, and compute none.
MOVES = frozenset(
    (
        *("Reshape", "Transpose", "Identity", "Slice", "Split", "Expand", "Gather", "GatherElements", "GatherND"),
        *("Unsqueeze", "Squeeze", "Cast", "CastLike", "Flatten", "Shape", "Size", "Tile", "ConstantOfShape"),
    )
)


class Prints(Taps):
    """Projections of what is recorded, by which a tensor is known again."""

    def __init__(self) -> None:
        super().__init__()
        self.prints: dict[str, np.ndarray] = {}

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        if value.dtype.kind == "f" and value.size:
            self.prints[name] = projections(value)
        return value


def projections(x: np.ndarray) -> np.ndarray:
    """Return the size, two projections and the norm of a tensor. -> float64 [4]"""
    flat = np.asarray(x, np.float64).ravel()
    i = np.arange(flat.size)
    return np.array([flat.size, flat @ np.cos(0.7 * i), flat @ np.sin(1.3 * i + 1), np.linalg.norm(flat)])


def name_outputs(
    model: onnx.ModelProto,
    inputs: Mapping[str, Any],
    weights: Mapping[str, Callable[[], np.ndarray]],
    given: Mapping[str, Any],
) -> None:
    """Write into the metadata of each node which module's output it gives: it is the first with its numbers.

    inputs, weights: all that the graph takes
    given:           tap -> the module's output
    """
    known, prints = {value.name for value in model.graph.input}, Prints()
    known_inputs = {k: np.asarray(x) for k, x in inputs.items() if k in known}
    evaluate(Model(Path("the graph"), model), known_inputs, prints, exact=True, weights=weights)
    names: dict[int, list[str]] = {}
    for tap, y in given.items():
        wanted, best = projections(np.asarray(y)), (_SAME, -1)
        for i, node in enumerate(model.graph.node):
            found = prints.prints.get(node.output[0])
            if found is None or found[0] != wanted[0] or not any(tap.startswith(m) for m in _modules(node)):
                continue
            distance = np.abs(found - wanted).max() / (wanted[3] or 1.0)
            if distance < best[0]:
                best = distance, i
        if best[1] >= 0:
            names.setdefault(best[1], []).append(tap)
    for i, taps in names.items():
        entry = model.graph.node[i].metadata_props.add()
        entry.key, entry.value = _NAMES, json.dumps(taps)


def taps_of(graph: onnx.GraphProto) -> list[list[str]]:
    """Return the names of each node's first output, in the order of nodes; none for one that moves values inside.

    The output of a module has the module's name, that of its second call NAME.1; a module that gives several has
    NAME.0, NAME.1, ... An operation that no module ends is named after the module that it stands in and itself.
    """
    nodes = list(graph.node)
    within = [_modules(node) for node in nodes]
    paths = [modules[-1] if modules else "" for modules in within]
    outside = {o.name for o in graph.output}
    readers: dict[str, set[int]] = {}
    for i, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, set()).add(i)
    names: list[list[str]] = [[] for _ in nodes]
    seen: Counter[str] = Counter()

    def add(i: int, name: str) -> None:
        names[i].append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1

    known_names = [json.loads(_metadata(node, _NAMES) or "[]") for node in nodes]
    for i, known in enumerate(known_names):
        for name in known:
            add(i, name)
    modules_in = {m for modules in within for m in modules} if not any(known_names) else set()
    for module in sorted(modules_in, key=lambda m: (-m.count("."), m)):
        inside = [i for i, modules in enumerate(within) if module in modules]
        for _, run in groupby(enumerate(inside), key=lambda pair: pair[1] - pair[0]):
            call = {i for _, i in run}
            given = [
                i
                for i in sorted(call)
                if nodes[i].output[0] in outside or readers.get(nodes[i].output[0], set()) - call
            ]
            for j, i in enumerate(given):
                add(i, module if len(given) == 1 else f"{module}.{j}")
    for i, (node, path) in enumerate(zip(nodes, paths, strict=True)):
        if node.op_type in MOVES or (path and any(path in (name, _base(name)) for name in names[i])):
            continue
        add(i, f"{path}.{node.op_type.lower()}" if path else node.op_type.lower())
    return names


def _metadata(node: onnx.NodeProto, key: str) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == key), "")


def _base(name: str) -> str:
    head, _, last = name.rpartition(".")
    return head if last.isdecimal() else name


def _modules(node: onnx.NodeProto) -> Sequence[str]:
    """Return the modules that a node stands in, the innermost last; none for the whole."""
    if text := _metadata(node, SCOPES):
        return [module for module in ast.literal_eval(text)[:-1] if module]
    parts = [part for part in node.name.split("/") if part][:-1]
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
