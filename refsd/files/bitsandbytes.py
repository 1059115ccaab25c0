"""Read weights as bitsandbytes saves them: NF4 and FP4, whose scales may be quantized too ("nested"), and int8.

<weight>                                  U8 [n / 2, 1], two codes a byte; or another type of the same size in bytes
<weight>.absmax                           F32, one scale for `blocksize` codes; U8 if nested
<weight>.quant_map                        F32 [16], the value of each code
<weight>.quant_state.bitsandbytes__nf4    U8, JSON: quant_type, blocksize, shape, nested_blocksize, nested_offset
<weight>.nested_absmax, .nested_quant_map F32, F32 [256]: absmax = nested_quant_map[code] nested_absmax + offset

<layer>.weight                            I8 [O, I]: value = (code * SCB) / 127, each product rounded to float32
<layer>.SCB                               F32 [O], the largest magnitude of each row
<layer>.weight_format                     U8 [], 0: rows as they are; absent in older files

Source: bitsandbytes, functional.py, QuantState.as_dict, dequantize_4bit and int8_vectorwise_dequant; nn/modules.py,
Linear8bitLt.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from refsd.files.scaled_groups import Joined, Read
from refsd.files.stored import Header, shown
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import GROUPED_TYPES, Grouping, Scaling

ROWS, FORMAT = "SCB", "weight_format"
_OF_127 = 7.874015718698502e-3  # their 1/127
STATE = ".quant_state.bitsandbytes__"
TYPES = ("nf4", "fp4")
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
NESTED_BLOCK = 256
MAX_STATE = 4096  # bytes of JSON
MAX_RANK = 4


def find(path: object, headers: Mapping[str, Header], read: Read) -> dict[str, Joined]:
    """Join each 4-bit weight with its scales: weight name -> Joined.

    Raises BadInput for a malformed quant_state, and for a tensor that is missing.
    """
    found = {}
    for name in headers:
        weight, state, kind = name.rpartition(STATE)
        if state and weight in headers and kind in TYPES:
            found[weight] = _join(f"{path}: tensor {shown(weight)}", weight, kind, headers, read)
    return found


def rows_of_int8(at: str, weight: str, headers: Mapping[str, Header], read: Read) -> tuple[Scaling, list[str]]:
    """Read the scales of an int8 weight's rows. -> (they, the names of their tensors)

    Raises BadInput for a scale of another shape or type, and for a weight that is not stored row by row.
    """
    layer = weight.rpartition(".")[0]
    layer += "." if layer else ""
    shape, name, form = headers[weight].shape, f"{layer}{ROWS}", f"{layer}{FORMAT}"
    if len(shape) != 2:
        raise BadInput(f"{at}: shape {list(shape)} has an {ROWS}; a matrix expected")
    scale = read(_part(at, name, "f32", shape[0], headers)).view(np.float32)
    if form not in headers:
        return Scaling(scale, unit=_OF_127), [name]
    if (code := int(read(_part(at, form, "u8", 1, headers))[0])) != 0:
        raise BadInput(f"{at}: its {shown(form)} is {code}; refsd reads 0, a weight stored row by row")
    return Scaling(scale, unit=_OF_127), [name, form]


def _join(at: str, weight: str, kind: str, headers: Mapping[str, Header], read: Read) -> Joined:
    state_name = f"{weight}{STATE}{kind}"
    state = _state(f"{at}: its {shown(state_name)}", kind, headers[state_name], read)
    shape, group = tuple(state["shape"]), state["blocksize"]
    n = math.prod(shape)
    if headers[weight].nbytes != -(-n // 2):
        raise BadInput(f"{at}: {headers[weight].nbytes} bytes; {-(-n // 2)} expected for {kind} {list(shape)}")
    nested = f"{weight}.nested_absmax" in headers
    groups = -(-n // group)
    wanted = {"absmax": ("u8" if nested else "f32", groups), "quant_map": ("f32", 16)}
    if nested:
        wanted |= {"nested_absmax": ("f32", -(-groups // NESTED_BLOCK)), "nested_quant_map": ("f32", 256)}
        _check_nesting(f"{at}: its {shown(state_name)}", state)
    parts = {part: _part(at, f"{weight}.{part}", type, size, headers) for part, (type, size) in wanted.items()}
    values = read(parts["quant_map"]).view(np.float32)
    if not np.allclose(values, GROUPED_TYPES[kind], rtol=1e-6, atol=1e-7):
        raise BadInput(f"{at}: its {shown(f'{weight}.quant_map')} is not {kind}'s; refsd expands {kind} alone")

    def scaling() -> Grouping:
        absmax = read(parts["absmax"])
        if not nested:
            return Grouping(absmax.view(np.float32), group)
        scale = np.repeat(read(parts["nested_absmax"]).view(np.float32), NESTED_BLOCK)[:groups]
        scale *= read(parts["nested_quant_map"]).view(np.float32)[absmax]
        return Grouping(scale + np.float32(state["nested_offset"]), group)

    helpers = [state_name, *(f"{weight}.{part}" for part in wanted)]
    return Joined(headers[weight]._replace(type=kind, shape=shape), scaling, helpers)


def _part(at: str, name: str, type: str, size: int, headers: Mapping[str, Header]) -> Header:
    header = headers.get(name)
    if header is None:
        raise BadInput(f"{at}: {shown(name)} is missing; all that bitsandbytes saved must be in the same file")
    if header.type != type or math.prod(header.shape) != size:
        raise BadInput(f"{at}: its {shown(name)} is {header.type} {list(header.shape)}; {type} [{size}] expected")
    return header


def _state(what: str, kind: str, header: Header, read: Read) -> dict[str, Any]:
    if header.type != "u8" or header.nbytes > MAX_STATE:
        raise BadInput(f"{what} is {header.type} of {header.nbytes} bytes; a short JSON text expected")
    try:
        state = json.loads(read(header).tobytes())
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise BadInput(f"{what} is not a JSON object")
    shape = state.get("shape")
    shape = shape if isinstance(shape, list) else []
    if not 0 < len(shape) <= MAX_RANK or not all(type(size) is int and 0 < size < 2**32 for size in shape):
        found = ascii(str(state.get("shape"))[:40])
        raise BadInput(f"{what} has the shape {found}; 1 to {MAX_RANK} positive whole numbers expected")
    if state.get("quant_type") != kind or type(state.get("blocksize")) is not int:
        raise BadInput(f"{what}: quant_type {kind} and a blocksize expected")
    if state["blocksize"] not in BLOCK_SIZES:
        raise BadInput(
            f"{what}: blocksize is {str(state['blocksize'])[:20]}; {', '.join(map(str, BLOCK_SIZES))} expected"
        )
    return state


def _check_nesting(what: str, state: Mapping[str, Any]) -> None:
    offset = state.get("nested_offset")
    if not isinstance(offset, int | float) or not abs(offset) < 1e30:
        raise BadInput(f"{what}: nested_offset is {str(offset)[:20]!a}; a number expected")
    if state.get("nested_blocksize") != NESTED_BLOCK:
        raise BadInput(
            f"{what}: nested_blocksize is {str(state.get('nested_blocksize'))[:20]!a}; {NESTED_BLOCK} expected"
        )
