"""Recognise matrices of packed integers, so that the file can be identified; refsd does not expand them.

GPTQ                <layer>.qweight I32 [I bits / 32, O], qzeros, scales [groups, O], g_idx I32 [I]
AWQ                 <layer>.qweight I32 [I, O / 8], qzeros, scales [groups, O]: 4 bits
Nunchaku            <layer>.qweight I8 [O, I / 2], wscales, and parts of its SVD: 4 bits
compressed-tensors  <layer>.weight_packed I32, or U8 [O, I / 2] (NVFP4); weight_scale; weight_shape I64 [2]
optimum-quanto      <layer>.weight._data, weight._scale
ModelOpt            <layer>.weight U8 [O, I / 2], weight_scale F8_E4M3 [O, I / 16], weight_scale_2, and no
                    comfy_quant: NVFP4 whose codes and scales need not have ComfyUI's order

Each becomes <layer>.weight with its real shape; the layer's other tensors but the bias are helpers.
Source: documented layouts; AutoGPTQ, qlinear_exllama.py; AutoAWQ, gemm.py; nunchaku, linear.py; compressed-tensors,
pack_quantized and nvfp4_quantized; optimum-quanto, tensor/weights; TensorRT Model Optimizer, nvfp4_tensor.py.
"""

from collections.abc import Container, Mapping
from typing import NamedTuple

import numpy as np

from refsd.files.scaled_groups import Read
from refsd.files.stored import Header

_BITS = 32  # of the integers into which GPTQ and AWQ pack


class Packed(NamedTuple):
    """A recognised matrix.

    name:    of the weight: <layer>.weight
    header:  of the packed tensor, with the real shape
    storage: in words
    helpers: names of the layer's other tensors
    """

    name: str
    header: Header
    storage: str
    helpers: list[str]


def find(headers: Mapping[str, Header], read: Read, described: Container[str] = ()) -> dict[str, Packed]:
    """Return each packed matrix, by its name in the file. described: layers whose format the metadata name"""
    found: dict[str, Packed] = {}
    for name, header in headers.items():
        layer, _, part = name.rpartition(".")
        if part == "_data" and layer.endswith(".weight"):
            scale = f"{layer}._scale"
            if scale in headers and len(header.shape) == 2:
                layer = layer.removesuffix(".weight")
                inside = (n for n in headers if n.startswith(f"{layer}.") and n != f"{layer}.bias")
                found[name] = Packed(f"{layer}.weight", header, "in optimum-quanto's weights", [*inside])
        elif part in _SHAPES and (part == "weight" or f"{layer}.weight" not in headers) and layer not in described:
            parts = {n.rpartition(".")[2]: n for n in headers if n.rpartition(".")[0] == layer}
            known = _SHAPES[part](header, {key: headers[n] for key, n in parts.items()}, read)
            if known is not None:
                shape, storage = known
                helpers = [n for key, n in parts.items() if key not in (part, "bias")]
                found[name] = Packed(f"{layer}.weight", header._replace(shape=shape), storage, helpers)
    return found


Shaped = tuple[tuple[int, int], str] | None


def _qweight(header: Header, parts: Mapping[str, Header], read: Read) -> Shaped:
    """Return the real shape of GPTQ's, AWQ's or Nunchaku's matrix, and the storage in words; None of another's."""
    if len(header.shape) != 2:
        return None
    first, second = header.shape
    if header.type == "i8" and "wscales" in parts:
        return (first, 2 * second), "in Nunchaku's SVDQuant"
    scales = parts.get("scales")
    if header.type != "i32" or scales is None or len(scales.shape) != 2:
        return None
    out = scales.shape[1]
    if 8 * second == out:
        return (out, first), "in AWQ's 4 bits"
    if second != out or not first:
        return None
    inputs = parts["g_idx"].shape[0] if "g_idx" in parts and parts["g_idx"].shape else 8 * first
    bits = first * _BITS // inputs if inputs else 0
    return ((out, inputs), f"in GPTQ's {bits} bits") if bits in (2, 3, 4, 8) else None


def _weight_packed(header: Header, parts: Mapping[str, Header], read: Read) -> Shaped:
    """Return the real shape of compressed-tensors' matrix, and the storage in words."""
    if len(header.shape) != 2 or "weight_scale" not in parts:
        return None
    if header.type == "u8":
        return (header.shape[0], 2 * header.shape[1]), "in compressed-tensors' 4-bit floats"
    stored = parts.get("weight_shape")
    if header.type != "i32" or stored is None or stored.type != "i64" or stored.shape != (2,):
        return None
    rows, columns = (int(n) for n in read(stored).view(np.int64))
    bits = header.shape[1] * _BITS // columns if columns > 0 else 0
    fits = rows == header.shape[0] and bits in (2, 3, 4, 8)
    return ((rows, columns), f"in compressed-tensors' {bits}-bit integers") if fits else None


def _weight(header: Header, parts: Mapping[str, Header], read: Read) -> Shaped:
    """Return the real shape of ModelOpt's NVFP4, and the storage in words."""
    scale = parts.get("weight_scale")
    if header.type != "u8" or len(header.shape) != 2 or "weight_scale_2" not in parts or "comfy_quant" in parts:
        return None
    shape = (header.shape[0], 2 * header.shape[1])
    fits = scale is not None and scale.type == "f8_e4m3" and scale.shape == (shape[0], shape[1] // 16)
    return (shape, "in NVFP4 without a comfy_quant, as ModelOpt's") if fits else None


_SHAPES = {"qweight": _qweight, "weight_packed": _weight_packed, "weight": _weight}
