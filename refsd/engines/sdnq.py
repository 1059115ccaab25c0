"""The engine sdnq: products of SDNQ, SD.Next's quantiser, by its own functions, in a process of its own.

The process is `python -m refsd.engines.sdnq`. On a CPU SDNQ gives products of int8 to OpenVINO if that is installed
(`sdnq-openvino`), else to torch (`sdnq`: SDNQ_USE_OPENVINO_MM=0). FP8 is torch's product (SDNQ_ALLOW_FP8_MM=1), as
on cards that have one; unasked a CPU multiplies float16. torch.compile is off.
"""

import importlib.util
import os
import sys
from functools import partial

from refsd.engines.arrays.array_engine import Library
from refsd.engines.arrays.torch_package import TYPES, answered, package_engines, serve_package, variants
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch
from refsd.numerics.profiles import SDNQ

_WITH_OPENVINO = "openvino"


def find(timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed sdnq; with OpenVINO, too, if that is installed."""
    found = package_engines(LIBRARY, "sdnq", timeout, variants("sdnq", activations=SDNQ.activations))
    if found[0].engine is None or importlib.util.find_spec("openvino") is None:
        return found
    how = variants("sdnq-openvino", activations=SDNQ.activations)
    return found + package_engines(OPENVINO, "sdnq", timeout, {"": how[""]}, _WITH_OPENVINO)


def _parts(x) -> dict:
    """A layer's weight as SDNQ has it: [K, O], its scales [1, O]."""
    return {"weight": x["weight"].T, "scale": x["weight_scale"].reshape(1, -1), "bias": x.get("bias")}


def _linear_int8(torch, x, params):
    from sdnq.layers.linear.linear_int8 import int8_matmul
    from sdnq.quant_utils import get_hadamard

    group = params["rotation"]
    hadamard = get_hadamard(group, dtype=x["x"].dtype, device="cpu") if group else None
    return int8_matmul(x["x"], **_parts(x), hadamard=hadamard)


def _linear_fp8(torch, x, params):
    from sdnq.layers.linear.linear_fp8 import fp8_matmul

    return fp8_matmul(x["x"], **_parts(x))


def _other_scales(case: Case) -> str | None:
    if (
        case.params.get("scales", "tensor" if case.op == "linear_fp8" else "row") != "row"
        or "x_scale" in case.inputs
    ):
        return "SDNQ's activations have a scale for each row, of its own"
    if case.params.get("activations", "f8_e4m3") != "f8_e4m3":
        return "SDNQ's activations in FP8 are E4M3"
    return "SDNQ's zero point of activations is a number between codes" if case.params.get("zero_point") else None


LIBRARY = Library(
    "sdnq",
    functions={"linear_int8": _linear_int8, "linear_fp8": _linear_fp8},
    refusals=dict.fromkeys(("linear_int8", "linear_fp8"), _other_scales),
    types=TYPES,
)
OPENVINO = LIBRARY._replace(name="sdnq-openvino", functions={"linear_int8": _linear_int8})
compute = partial(answered, LIBRARY)

if __name__ == "__main__":
    os.environ |= {
        "SDNQ_USE_OPENVINO_MM": str(int(_WITH_OPENVINO in sys.argv)),
        "SDNQ_ALLOW_FP8_MM": "1",
        "SDNQ_USE_TORCH_COMPILE": "0",
    }
    serve_package(LIBRARY)
