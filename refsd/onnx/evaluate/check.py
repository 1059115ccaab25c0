"""Check a graph before anything of it runs: names, order, operators; all graphs and functions within it too."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import onnx

from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.file import Model, subgraphs
from refsd.onnx.evaluate.node import OPERATORS, find

# Graphs within graphs and functions within functions.
DEEPEST = 50
# Operators that ONNX defines by others which refsd does not run: random numbers, and sequences of tensors.
_BODIES_NOT_RUN = {"Bernoulli", "SequenceMap"}


def check(model: Model) -> None:
    """Raise BadInput, in one line, for a graph that cannot run.

    A name defined twice, read but never given, or read before it is given, as in a cycle; an operator that refsd
    does not run; a domain without a version; outputs that nothing gives.
    """
    proto = model.proto
    if "" not in model.opsets and any(not node.domain or node.domain == "ai.onnx" for node in proto.graph.node):
        raise BadInput(f"{model.path}: no version of ONNX's operator set is declared (opset_import)")
    _check_graph(model, proto.graph, frozenset(), "", 0)
    for function in proto.functions:
        versions = {**model.opsets, **{opset.domain or "": opset.version for opset in function.opset_import}}
        where = f"function {function.name}: "
        _check_nodes(model, function.node, set(function.input), function.output, where, versions, 0)


def _check_graph(model: Model, graph: onnx.GraphProto, outer: Collection[str], where: str, depth: int) -> None:
    if depth > DEEPEST:
        raise BadInput(f"{model.path}: {where}graphs nested more than {DEEPEST} deep")
    known = set(outer)
    inputs = [value.name for value in graph.input]
    own = [tensor.name for tensor in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
    if len(graph.sparse_initializer):
        raise BadInput(f"{model.path}: {where}sparse tensors, which refsd does not read")
    for names in (inputs, own):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise BadInput(f"{model.path}: {where}{twice[0]!r} is defined twice")
        known.update(names)
    _check_nodes(model, graph.node, known, [o.name for o in graph.output], where, model.opsets, depth)


def _check_nodes(model: Model, nodes, known: set[str], outputs, where: str, versions, depth: int) -> None:
    given = {output: node for node in nodes for output in node.output}
    for number, node in enumerate(nodes):
        said = f"{model.path}: {where}{called(node, number)}"
        for name in node.input:
            if name and name not in known:
                why = (
                    "a cycle, or nodes out of order" if name in given else f"nothing gives it{_meant(name, known)}"
                )
                raise BadInput(f"{said} reads {name!r}: {why}")
        _check_operator(model, node, said, versions)
        for graph in subgraphs(node):
            _check_graph(model, graph, known, f"{where}{called(node, number)}: ", depth + 1)
        for name in node.output:
            if name and name in known:
                raise BadInput(f"{said} gives {name!r}, which is defined already")
            known.add(name)
    for name in outputs:
        if name not in known or not name:
            raise BadInput(f"{model.path}: {where}nothing gives the output {name!r}{_meant(name, known)}")


def _check_operator(model: Model, node: onnx.NodeProto, said: str, versions) -> None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if (domain, node.op_type, getattr(node, "overload", "")) in model.functions:
        return
    if domain not in versions:
        raise BadInput(f"{said}: no version of the domain {domain!r} is declared (opset_import)")
    version = versions[domain]
    if find(domain, node.op_type, version) is None and body_schema(domain, node.op_type, version) is None:
        raise BadInput(f"{said}: {not_run(domain, node.op_type, version)}")
    known = _attributes(domain, node.op_type, version)
    for attribute in node.attribute:
        if known is not None and attribute.name not in known:
            meant = did_you_mean(attribute.name, known)
            listed = ", ".join(known) or "none"
            raise BadInput(f"{said} has an attribute {attribute.name[:60]!r}{meant}; {node.op_type} has {listed}")


def _attributes(domain: str, op: str, version: int) -> Collection[str] | None:
    """The names of an operator's attributes; None where ONNX does not define it."""
    try:
        schema: Any = onnx.defs.get_schema(op, version, domain)
    except (onnx.defs.SchemaError, TypeError, ValueError):
        return None
    return list(schema.attributes)


def not_run(domain: str, op: str, version: int) -> str:
    """Say that refsd does not run an operator."""
    more = did_you_mean(op, [name for of, name in OPERATORS if of == domain])
    return (
        f"refsd does not run this operator{more}, version {version}"
        f"{f' of domain {domain!r}' if domain else ''}; `refsd run-onnx --operators` lists those that it runs"
    )


def body_schema(domain: str, op: str, version: int) -> Any:
    """ONNX's own definition of an operator by others that refsd runs, if it has one."""
    try:
        schema: Any = onnx.defs.get_schema(op, version, domain)
    except (onnx.defs.SchemaError, TypeError, ValueError):
        return None
    if schema.has_context_dependent_function:  # its nodes are known with its inputs only
        return None if op in _BODIES_NOT_RUN else schema
    return schema if schema.has_function else None


def called(node: onnx.NodeProto, number: int) -> str:
    """How messages name a node: node 'conv_in' (Conv)."""
    name = node.name or next((output for output in node.output if output), f"number {number}")
    return f"node {name[:100]!r} ({node.op_type[:60]})"


def _meant(name: str, known: Collection[str]) -> str:
    return did_you_mean(name, known) if len(known) < 2000 else ""
