"""Weights in a graph: in their storage type where ONNX has it, and expanded to float32 by nodes."""

import ml_dtypes
import numpy as np

from refsd.golden.operations.linear_w4a16 import Codes
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor
from refsd.onnx.builder import Builder, Value

# Types of independent elements that a Cast to float32 expands.
_CAST = ("f16", "bf16", "f8_e4m3", "f8_e5m2")
_BLOCK = 32  # of q8_0 and q4_0


def is_said(tensor_type: str) -> bool:
    """Whether ONNX has a type of a file, so that its expansion is of nodes."""
    return tensor_type in _CAST or tensor_type in _CODES


def weight(b: Builder, name: str, tensor: StoredTensor) -> Value:
    """Add a weight as initializers and the nodes that expand it to float32; a note says how.

    f16, bf16, 8-bit floats: in their type, with a Cast. q8_0, q4_0: codes of 8 and 4 bits and float32 scales (those
    of the blocks, exactly), with a DequantizeLinear of blocks of 32. Every other type: dequantized to float32.
    """
    if tensor.type in _CAST and tensor.scaling is None:
        b.notes[f"weight.{name}"] = f"{tensor.type}, cast to float32"
        return b.cast(b.constant(tensor.data.reshape(tensor.shape), name), np.float32)
    if tensor.type in _CODES:
        b.notes[f"weight.{name}"] = f"{tensor.type} as DequantizeLinear of blocks of {_BLOCK}"
        codes, scales = _CODES[tensor.type](tensor)
        matrix = codes.ndim == 2 and b.outputs_last
        codes, scales = (np.ascontiguousarray(y.T) if matrix else y for y in (codes, scales))
        names = b.constant(codes, name), b.constant(scales, f"{name}.scales")
        axis = 0 if matrix else codes.ndim - 1
        expanded = b.node("DequantizeLinear", *names, axis=axis, block_size=_BLOCK)
        return b.turned(expanded) if matrix else expanded
    if tensor.type not in SCALAR_TYPES or tensor.scaling is not None:
        b.notes[f"weight.{name}"] = f"{tensor.type}, dequantized to float32"
    return b.constant(tensor.values(), name)


def groups_of_4_bits(b: Builder, of: Codes) -> Value:
    """Add a matrix of codes of 4 bits with scales and zero points of groups, expanded by a DequantizeLinear."""
    parts = [of.q.astype(ml_dtypes.uint4), of.scale, of.zero.astype(ml_dtypes.uint4)]
    parts = [np.ascontiguousarray(part.T) if b.outputs_last else part for part in parts]
    names = (b.constant(part, name) for part, name in zip(parts, ("weight", "scales", "zeros"), strict=True))
    expanded = b.node("DequantizeLinear", *names, axis=0 if b.outputs_last else 1, block_size=of.group)
    return b.turned(expanded) if b.outputs_last else expanded


def _q8_0(tensor: StoredTensor) -> tuple[np.ndarray, np.ndarray]:
    """y = d q"""
    blocks, d = _blocks(tensor, 2 + _BLOCK)
    return blocks[:, 2:].view(np.int8).reshape(tensor.shape), d


def _q4_0(tensor: StoredTensor) -> tuple[np.ndarray, np.ndarray]:
    """y = d (q - 8)"""
    blocks, d = _blocks(tensor, 2 + _BLOCK // 2)
    codes = np.concatenate([blocks[:, 2:] & 0xF, blocks[:, 2:] >> 4], axis=1).astype(np.int8) - 8
    return codes.reshape(tensor.shape).astype(ml_dtypes.int4), d


def _blocks(tensor: StoredTensor, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The blocks as bytes, and their float16 scales as float32 [..., blocks in a row]."""
    blocks = np.ascontiguousarray(tensor.data).reshape(-1, size)
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return blocks, d.reshape(*tensor.shape[:-1], tensor.shape[-1] // _BLOCK)


# type -> its codes and scales
_CODES = {"q8_0": _q8_0, "q4_0": _q4_0}
