"""Recognise operations that an exporter has spelled out as nodes, and replace them by one of refsd's domain."""

import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from refsd.adoption.rotations import PARTNERS
from refsd.adoption.view import View
from refsd.onnx.evaluate.file import Model

DOMAIN = "refsd"


def parameters(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the parameters of a node of refsd's domain."""
    return json.loads(node.attribute[0].s)


class Found(NamedTuple):
    """An operation that a node ends.

    inner: outputs of the other nodes that it stands for
    """

    op: str
    inputs: Sequence[str]
    params: Mapping[str, Any]
    inner: Sequence[str] = ()


def recognised(model: Model) -> Model:
    """Return the model with its operations recognised; it computes the same."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    view = View(proto)
    made: dict[str, onnx.NodeProto] = {}
    swallowed: set[str] = set()
    for node in view.nodes:
        for match in _MATCHES.get(node.op_type, ()):
            found = match(view, node)
            if found is None or not view.is_private(found.inner, node):
                continue
            swallowed.update(found.inner)
            text = json.dumps(found.params)
            fused = helper.make_node(found.op, found.inputs, node.output[:1], node.name, domain=DOMAIN, params=text)
            fused.metadata_props.extend(node.metadata_props)
            made[node.output[0]] = fused
            break
    nodes = [made.get(node.output[0], node) for node in view.nodes if node.output[0] not in swallowed]
    wanted, alive = {o.name for o in proto.graph.output}, []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
            alive.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(alive))
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return Model(model.path, proto)


def gains(model: onnx.ModelProto, weights: Collection[str]) -> frozenset[str]:
    """Return the vectors among the weights that a product or a norm multiplies by, whatever their names."""
    view, found = View(model), set()
    for node in view.nodes:
        if node.op_type != "Mul" and not node.op_type.endswith("Normalization"):
            continue
        for name in node.input[:2]:
            while (made := view.made_by(name, "Reshape", "Unsqueeze")) is not None:
                name = made.input[0]
            dims = view.dims(view.origin(name))
            if view.origin(name) in weights and dims and max(dims) == math.prod(dims):
                found.add(view.origin(name))
    return frozenset(found)


def _conv(view: View, node: onnx.NodeProto) -> Found | None:
    axes = view.rank(node.input[1]) - 2
    if axes not in (1, 2, 3) or view.attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    params = {
        "stride": view.attribute(node, "strides", [1] * axes),
        "pads": view.attribute(node, "pads", [0] * 2 * axes),
        "dilation": view.attribute(node, "dilations", [1] * axes),
        "groups": view.attribute(node, "group", 1),
    }
    return Found("conv", node.input, params)


def _gemm(view: View, node: onnx.NodeProto) -> Found | None:
    plain = all(view.attribute(node, name, 1.0) == 1 for name in ("alpha", "beta"))
    bias = [*node.input[2:]]
    if not plain or view.attribute(node, "transA", 0) or any(view.rank(name) != 1 for name in bias):
        return None
    return Found("linear", node.input, {} if view.attribute(node, "transB", 0) else {"transposed": True})


def _product(view: View, node: onnx.NodeProto) -> Found | None:
    """x W' or x W, with W a weight."""
    x, weight = node.input
    turned = view.made_by(weight, "Transpose")
    if turned is not None and view.origin(turned.input[0]) in view.inputs and view.rank(turned.input[0]) == 2:
        return Found("linear", [x, turned.input[0]], {}, [turned.output[0], *view.between(weight)])
    if view.origin(weight) in view.inputs and view.rank(weight) == 2 and view.rank(x) != 1:
        return Found("linear", [x, weight], {"transposed": True})
    return None


def _biased(view: View, node: onnx.NodeProto) -> Found | None:
    """A product with a weight, plus a vector."""
    for y, bias in view.either(node):
        product = view.maker.get(y)
        if product is None or product.op_type != "MatMul" or view.rank(bias) != 1:
            continue
        found = _product(view, product)
        if found is not None and view.origin(bias) in view.inputs:
            return Found("linear", [*found.inputs, bias], found.params, [*found.inner, y])
    return None


def _group_norm(view: View, node: onnx.NodeProto) -> Found | None:
    params = {"num_groups": view.attribute(node, "num_groups"), "eps": view.attribute(node, "epsilon", 1e-5)}
    return Found("group_norm", node.input, params)


def _norm(op: str) -> Callable[[View, onnx.NodeProto], Found | None]:
    """A norm over the last axis, whose mean and deviation are not read."""

    def match(view: View, node: onnx.NodeProto) -> Found | None:
        last = view.attribute(node, "axis", -1) in (-1, view.rank(node.input[0]) - 1) and not any(node.output[1:])
        return Found(op, node.input, {"eps": view.attribute(node, "epsilon", 1e-5)}) if last else None

    return match


def _spelled_rms_norm(view: View, node: onnx.NodeProto) -> Found | None:
    """w (x r) or x r, with r = 1 / sqrt(mean(x^2) + eps)."""
    for y, weight in view.either(node):
        inner = view.made_by(y, "Mul")
        found = _unit_rms(view, inner) if inner is not None else None
        if found is not None and inner is not None and view.rank(weight) == 1:
            names = [*found.inner, inner.output[0], *view.between(y)]
            return Found("rms_norm", [*found.inputs, weight], {**found.params, "apart": True}, names)
    found = _unit_rms(view, node)
    weighted = found is not None and any(view.is_weighted(name) for name in node.output)
    return None if weighted else found


def _unit_rms(view: View, node: onnx.NodeProto) -> Found | None:
    for x, r in view.either(node):
        inverse = view.made_by(r, "Reciprocal")
        root = view.made_by(inverse.input[0], "Sqrt") if inverse is not None else None
        total = view.made_by(root.input[0], "Add") if root is not None else None
        if inverse is None or root is None or total is None:
            continue
        for mean, eps in view.either(total):
            average, number = view.made_by(mean, "ReduceMean"), view.number(eps)
            square = view.made_by(average.input[0], "Pow", "Mul") if average is not None else None
            if average is None or number is None or square is None or not view.attribute(average, "keepdims", 1):
                continue
            of = square.input[0]
            squared = view.number(square.input[1]) == 2 if square.op_type == "Pow" else square.input[1] == of
            if not squared or view.origin(of) != view.origin(x) or view.number(average.input[1]) != -1:
                continue
            chain = (inverse, root, total, average, square)
            ends = (r, inverse.input[0], root.input[0], mean, average.input[0], x, of)
            passed = [name for end in ends for name in view.between(end)]
            inner = [one.output[0] for one in chain]
            own = [name for name in passed if view.is_private([name], node, inner)]
            return Found("rms_norm", [view.origin(x)], {"eps": number}, [*inner, *own])
    return None


def _attention(view: View, node: onnx.NodeProto) -> Found | None:
    plain = view.attribute(node, "softcap", 0.0) == 0 and not any(node.input[4:]) and len(node.output) == 1
    if not plain or any(view.rank(name) != 4 for name in node.input[:3]):
        return None
    params = {"causal": bool(view.attribute(node, "is_causal", 0)), "scale": view.attribute(node, "scale")}
    return Found("attention", node.input[:4], params)


def _embedding(view: View, node: onnx.NodeProto) -> Found | None:
    table = node.input[0]
    if view.origin(table) not in view.inputs or view.rank(table) != 2 or view.attribute(node, "axis", 0) != 0:
        return None
    return Found("embedding", node.input, {}) if view.rank(node.input[1]) > 0 else None


def _silu(view: View, node: onnx.NodeProto) -> Found | None:
    """x sigmoid(x), or x sigmoid(1.702 x)."""
    for x, y in view.either(node):
        gate = view.made_by(y, "Sigmoid")
        if gate is None:
            continue
        inner = [gate.output[0], *view.between(y)]
        if gate.input[0] == x:
            return Found("silu", [x], {}, inner)
        scaled = view.made_by(gate.input[0], "Mul")
        for of, factor in view.either(scaled) if scaled is not None else ():
            if of == x and view.number(factor) == 1.702:
                return Found("quick_gelu", [x], {}, [*inner, gate.input[0]])
    return None


def _gelu(view: View, node: onnx.NodeProto) -> Found | None:
    return Found("gelu", node.input, {"approximate": view.attribute(node, "approximate", "none")})


def _rope(view: View, node: onnx.NodeProto) -> Found | None:
    """x cos + r sin, where r has each channel's partner in its pair, one of the two negated."""
    for one, other in view.either(node):
        plain, crossed = view.made_by(one, "Mul"), view.made_by(other, "Mul")
        if plain is None or crossed is None:
            continue
        for (x, cos), (partner, sin) in itertools.product(view.either(plain), view.either(crossed)):
            source = view.origin(x)
            for halves, partners in PARTNERS.items():
                if view.stands_as(partner, source, partners):
                    return Found("rope", [source, cos, sin], {"halves": halves})
    return None


def _rope_of_pairs(view: View, node: onnx.NodeProto) -> Found | None:
    """Pairs of neighbours, joined: (a cos - b sin, a sin + b cos), or (cos, sin) a + (-sin, cos) b."""
    joined = view.made_by(node.input[0], "Concat", "Add")
    if joined is None or len(joined.input) != 2:
        return None
    columns = joined.op_type == "Add"
    ends = [view.made_by(name, op) for name, op in zip(joined.input, ("Sub", "Add"), strict=True)]
    of = [joined] if columns else [end for end in ends if end is not None]
    found = [view.made_by(name, "Mul") for end in of for name in end.input]
    products = [product for product in found if product is not None]
    if len(products) != (2 if columns else 4):
        return None
    crossed = sorted(sorted(product.input) for product in products[2:])
    for (a, cos), (b, sin) in itertools.product(*map(view.either, products[:2])):
        if not columns and crossed != sorted([sorted([a, sin]), sorted([b, cos])]):
            continue
        part = view.made_by(a, "Slice", "Gather")
        pairs = view.made_by(part.input[0], "Reshape") if part is not None else None
        x = view.origin(pairs.input[0]) if pairs is not None else ""
        if view.dims(x) == view.dims(node.output[0]) and all(
            view.stands_as(name, x, which) for name, which in ((a, _evens), (b, _odds))
        ):
            return Found("rope", [x, cos, sin], {"halves": False, "columns": columns})
    return None


def _evens(x: np.ndarray) -> np.ndarray:
    return x[..., ::2, None]


def _odds(x: np.ndarray) -> np.ndarray:
    return x[..., 1::2, None]


def _plain(op: str) -> Callable[[View, onnx.NodeProto], Found | None]:
    return lambda view, node: Found(op, node.input, {}) if view.is_float(node.input[0]) else None


# Type of the node that ends an operation -> what it may be, the largest first.
_MATCHES: dict[str, tuple[Callable[[View, onnx.NodeProto], Found | None], ...]] = {
    "Conv": (_conv,),
    "Gemm": (_gemm,),
    "MatMul": (_product,),
    "Reshape": (_rope_of_pairs,),
    "Add": (_rope, _biased, _plain("add")),
    "Mul": (_spelled_rms_norm, _silu, _plain("multiply")),
    "GroupNormalization": (_group_norm,),
    "LayerNormalization": (_norm("layer_norm"),),
    "RMSNormalization": (_norm("rms_norm"),),
    "Attention": (_attention,),
    "Gather": (_embedding,),
    "Gelu": (_gelu,),
    "Neg": (_plain("negate"),),
    "Sub": (_plain("subtract"),),
}
