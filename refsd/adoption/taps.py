"""Name what a graph computes by the module tree: blocks.3.attn.to_q, and blocks.3.attn.attention inside of attn.

Torch's exporter writes each node's modules into its metadata; another exporter may write a path as the node's name.
"""

import ast
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import onnx

from refsd.adoption.tidying import SCOPES

# Nodes that move values, and compute none.
MOVES = frozenset(
    (
        *("Reshape", "Transpose", "Identity", "Slice", "Split", "Expand", "Gather", "GatherElements", "GatherND"),
        *("Unsqueeze", "Squeeze", "Cast", "CastLike", "Flatten", "Shape", "Size", "Tile", "ConstantOfShape"),
    )
)


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

    for module in sorted({m for modules in within for m in modules}, key=lambda m: (-m.count("."), m)):
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


def _base(name: str) -> str:
    head, _, last = name.rpartition(".")
    return head if last.isdecimal() else name


def _modules(node: onnx.NodeProto) -> Sequence[str]:
    """Return the modules that a node stands in, the innermost last; none for the whole."""
    text = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    if text:
        return [module for module in ast.literal_eval(text)[:-1] if module]
    parts = [part for part in node.name.split("/") if part][:-1]
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
