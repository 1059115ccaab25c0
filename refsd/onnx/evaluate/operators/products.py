"""Products of matrices."""

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.node import Node, operator
from refsd.onnx.evaluate.operators.elementwise import broadcast


@operator("MatMul")
def matmul(node: Node, a, b):
    rows = a.shape[-2:-1] if a.ndim > 1 else ()
    columns = b.shape[-1:] if b.ndim > 1 else ()
    batch = broadcast(node, a.shape[:-2], b.shape[:-2])
    node.room((*batch, *rows, *columns))
    return np.matmul(a, b)


@operator("Gemm")
def gemm(node: Node, a, b, c=None):
    """alpha A' B' + beta C"""
    a = a.T if node.attribute("transA", 0) else a
    b = b.T if node.attribute("transB", 0) else b
    node.room((a.shape[0], b.shape[1]))
    y = node.attribute("alpha", 1.0) * (a @ b) if a.dtype.kind == "f" else a @ b
    return y if c is None else y + (node.attribute("beta", 1.0) * c if c.dtype.kind == "f" else c)


@operator("MatMulInteger")
def matmul_integer(node: Node, a, b, a_zero=None, b_zero=None):
    """Zero points are of the whole, of the rows of a, or of the columns of b."""
    a_zero, b_zero = (
        np.zeros((), np.int32) if zero is None else zero.astype(np.int32) for zero in (a_zero, b_zero)
    )
    a_zero = a_zero[:, None] if a_zero.ndim == 1 and a_zero.size > 1 else a_zero
    return matmul(node, a.astype(np.int32) - a_zero, b.astype(np.int32) - b_zero)


@operator("Einsum")
def einsum(node: Node, *xs: np.ndarray):
    """The sum over a diagonal, an ellipsis and implicit outputs mean what NumPy's do."""
    equation = node.attribute("equation").replace(" ", "")
    terms = equation.split("->")[0].split(",")
    if len(terms) != len(xs):
        raise BadInput(f"equation {equation!r} of {len(xs)} tensors")
    sizes: dict[str, int] = {}
    for term, x in zip(terms, xs, strict=True):
        head, dots, tail = term.partition("...")
        pairs = zip(head, x.shape, strict=False), zip(tail[::-1], x.shape[::-1], strict=False)
        sizes |= {letter: n for part in pairs for letter, n in part}
        if dots:
            sizes["."] = max(sizes.get(".", 1), int(np.prod(x.shape[len(head) : x.ndim - len(tail)], dtype=object)))
    output = equation.split("->")[1] if "->" in equation else "".join(sorted(set(equation) & set(sizes)))
    node.room(sizes.get(letter, 1) for letter in output.replace("...", "."))
    return np.einsum(equation, *xs, optimize=True)
