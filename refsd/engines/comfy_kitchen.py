"""The engine comfy-kitchen: ComfyUI's linear layers in few bits, by its own functions, in a process of its own.

The process is `python -m refsd.engines.comfy_kitchen`. It keeps to the package's reference in torch ("eager"),
against which other back ends are tested.
"""

from functools import partial

from refsd.engines.arrays.array_engine import Library
from refsd.engines.arrays.torch_package import FLOAT8, TYPES, answered, package_engines, serve_package, variants
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch


def find(timeout: float = 300.0, **_) -> list[EngineSearch]:
    """The installed comfy-kitchen."""
    return package_engines(LIBRARY, "comfy_kitchen", timeout, variants("comfy-kitchen"))


def _rotated(x, group: int):
    from comfy_kitchen.tensor.int8_utils import _build_hadamard, _rotate_activation

    return _rotate_activation(x, _build_hadamard(group, dtype=x.dtype), group) if group else x


def _linear_int8(torch, x, params):
    """int8_linear, whose activations have a scale a row; with one scale, by TensorWiseINT8Layout's functions."""
    from comfy_kitchen.backends.eager import quantization as eager

    rows, weight, scale, bias = x["x"], x["weight"], x["weight_scale"], x.get("bias")
    group = params["rotation"]
    if params["scales"] == "row" and "x_scale" not in x:
        return eager.int8_linear(rows, weight, scale, bias, rows.dtype, bool(group), group or 256)
    turned = _rotated(rows.reshape(-1, rows.shape[-1]), group)
    codes, own = eager.quantize_int8_tensorwise(turned, x["x_scale"].reshape(()) if "x_scale" in x else None)
    sums = eager.mm_int8(codes, weight.T.contiguous()).float()
    y = (sums * (own * scale)).to(rows.dtype)
    return (y if bias is None else y + bias).reshape(*rows.shape[:-1], -1)


def _linear_w4a8(torch, x, params):
    from comfy_kitchen.backends.eager import w4a8_int8 as eager

    rows, scale = x["x"], x["group_scale"]
    group = rows.shape[-1] // scale.shape[-1]
    return eager.w4a8_int8_linear(
        *(rows, x["weight"].view(torch.int8), scale, x["weight_scale"], x.get("codebook"), None, x.get("bias")),
        *(group, params["rotation"], rows.dtype),
    )


def _linear_w4a4(torch, x, params):
    from comfy_kitchen.backends.eager import convrot_w4a4 as eager

    weight = x["weight"].view(torch.int8), x["weight_scale"], x.get("bias")
    return eager.convrot_w4a4_linear(x["x"], *weight, params["rotation"])


def _linear_w4a16(torch, x, params):
    """gemv_awq_w4a16, whose zero is the number that the code 8 stands for."""
    from comfy_kitchen.backends.eager import awq

    scale = x["group_scale"]
    zero = (8 - x["group_zero"].to(scale.dtype)) * scale if "group_zero" in x else torch.zeros_like(scale)
    return awq.gemv_awq_w4a16(x["x"], x["weight"].view(torch.int8), scale.T, zero.T, x.get("bias"), params["group"])


def _linear_fp8(torch, x, params):
    from comfy_kitchen.scaled_mm_v2 import scaled_mm_v2
    from comfy_kitchen.tensor import TensorCoreFP8Layout

    kind = getattr(torch, FLOAT8[params["activations"]])
    rows = x["x"].reshape(-1, x["x"].shape[-1])
    given = x["x_scale"].reshape(()) if "x_scale" in x else None
    codes, layout = TensorCoreFP8Layout.quantize(rows, scale=given, dtype=kind)
    scale, bias = x["weight_scale"].reshape(()), x.get("bias")
    y = scaled_mm_v2(codes, x["weight"].T, layout.scale, scale, out_dtype=rows.dtype)
    return (y if bias is None else y + bias).reshape(*x["x"].shape[:-1], -1)


def _linear_nvfp4(torch, x, params):
    """What TensorCoreNVFP4Layout comes to where torch has no product of NVFP4: both factors widened again."""
    import comfy_kitchen
    from comfy_kitchen.float_utils import to_blocked
    from comfy_kitchen.tensor import TensorCoreNVFP4Layout

    rows = x["x"].reshape(-1, x["x"].shape[-1])
    given = x["x_scale"].reshape(()) if "x_scale" in x else None
    factor = TensorCoreNVFP4Layout.dequantize(*TensorCoreNVFP4Layout.quantize(rows, scale=given))[: len(rows)]
    scale, blocks = x["weight_scale"].reshape(()), to_blocked(x["block_scale"], flatten=False)
    weight = comfy_kitchen.dequantize_nvfp4(x["weight"], scale, blocks, rows.dtype)
    return torch.nn.functional.linear(factor, weight, x.get("bias")).reshape(*x["x"].shape[:-1], -1)


def _linear_mxfp8(torch, x, params):
    """What TensorCoreMXFP8Layout comes to where torch has no product of MXFP8: both factors widened again."""
    from comfy_kitchen.backends.eager import quantization as eager
    from comfy_kitchen.float_utils import to_blocked

    rows = x["x"].reshape(-1, x["x"].shape[-1])
    factor = eager.dequantize_mxfp8(*eager.quantize_mxfp8(rows), rows.dtype)
    weight = eager.dequantize_mxfp8(x["weight"], to_blocked(x["block_scale"], flatten=False), rows.dtype)
    return torch.nn.functional.linear(factor, weight, x.get("bias")).reshape(*x["x"].shape[:-1], -1)


def _linear_svdquant(torch, x, params):
    """_w4a4_forward of TensorCoreSVDQuantW4A4Layout."""
    from comfy_kitchen.backends.eager import svdquant as eager

    rows, unsigned = x["x"].reshape(-1, x["x"].shape[-1]), params["unsigned"]
    shifted = rows + eager._GELU_UNSIGNED_SHIFT if unsigned else rows
    codes, scale, low = eager.quantize_svdquant_w4a4(shifted, x["smooth"], x["down"], 1, unsigned, rows)
    weight = x["weight"].view(torch.int8), scale, x["group_scale"]
    y = eager.scaled_mm_svdquant_w4a4(codes, *weight, low, x["up"], x.get("bias"), unsigned)
    return y.reshape(*x["x"].shape[:-1], -1)


def _no_rows(case: Case) -> str | None:
    rows = case.params.get("scales") == "row" or case.inputs["weight_scale"].shape != (1,)
    return "comfy-kitchen's FP8 has one scale for the tensor" if rows else None


def _other_mx(case: Case) -> str | None:
    other = case.params.get("scales") == "floor" or case.params.get("activations") == "f8_e5m2"
    return "comfy-kitchen's MXFP8 is E4M3, its scales are rounded up" if other else None


def _cut_short(case: Case) -> str | None:
    short = case.inputs["x"].shape[-1] % case.params.get("group", 32)
    return "comfy-kitchen's groups are whole" if short else None


def _zero_point(case: Case) -> str | None:
    if "y_scale" in case.inputs:
        return "comfy-kitchen's results are no codes"
    return "comfy-kitchen's int8 has no zero points" if case.params.get("zero_point") else None


LIBRARY = Library(
    "comfy-kitchen",
    functions={
        "linear_int8": _linear_int8,
        "linear_w4a8": _linear_w4a8,
        "linear_w4a4": _linear_w4a4,
        "linear_w4a16": _linear_w4a16,
        "linear_svdquant": _linear_svdquant,
        "linear_fp8": _linear_fp8,
        "linear_nvfp4": _linear_nvfp4,
        "linear_mxfp8": _linear_mxfp8,
    },
    refusals={
        "linear_fp8": _no_rows,
        "linear_int8": _zero_point,
        "linear_mxfp8": _other_mx,
        "linear_w4a16": _cut_short,
    },
    rounded={
        "linear_nvfp4": "a CPU has no product of NVFP4, and widened factors are rounded to the dtype",
        "linear_svdquant": "a CPU has no product of 4 bits, and widened factors are rounded to the dtype",
        "linear_w4a4": "a CPU has no product of 4 bits, and sums of widened codes are rounded to the dtype",
    },
    types=TYPES,
)

compute = partial(answered, LIBRARY)

if __name__ == "__main__":
    serve_package(LIBRARY)
