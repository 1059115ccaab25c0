"""Linear layers by torch, and products of int8 and of 8-bit floats."""

from refsd.engines.torch.ops.function import Function
from refsd.golden.case import Case
from refsd.kernels.convolution_geometry import each, positions

# type of activations -> torch's dtype and its largest number
_FEW_BITS = {"int8": ("int8", 127.0), "f8_e4m3": ("float8_e4m3fn", 448.0), "f8_e5m2": ("float8_e5m2", 57344.0)}
_IN_FEW_BITS = ("linear_int8", "conv2d_int8", "linear_fp8")
_LEAST = 1e-30  # scale of a row of zeros


def _codes(torch, x, kind: str, scales: str, given):
    """Round activations to few bits. -> codes [R, K], their scale [R, 1] or []"""
    dtype, largest = _FEW_BITS[kind]
    rows = x.reshape(-1, x.shape[-1])
    if given is None:
        most = rows.abs().amax(dim=-1, keepdim=True) if scales == "row" else rows.abs().amax()
        scale = (most / largest).clamp(min=_LEAST)
    else:
        scale = given.reshape(())
    lowest, codes = (-128.0, torch.round(rows / scale)) if kind == "int8" else (-largest, rows / scale)
    return codes.clamp(lowest, largest).to(getattr(torch, dtype)), scale


def _finished(y, x):
    y = y if x.get("bias") is None else y + x["bias"]
    return y.reshape(*x["x"].shape[:-1], -1)


def _linear_int8(torch, x, params):
    codes, scale = _codes(torch, x["x"], "int8", params["scales"], x.get("x_scale"))
    sums = torch._int_mm(codes, x["weight"].to(torch.int8).T)
    return _finished(sums.float() * (scale * x["weight_scale"]), x)


def _conv2d_int8(torch, x, params):
    """The pixels under the filter as rows of a product: torch has no convolution of int8."""
    codes, scale = _codes(torch, x["x"], "int8", "tensor", x.get("x_scale"))
    top, bottom, left, right = params["padding"]
    padded = torch.nn.functional.pad(codes.reshape(x["x"].shape).float(), (left, right, top, bottom))
    K, _, *taps = x["weight"].shape
    patches = torch.nn.functional.unfold(padded, taps, stride=params["stride"]).to(torch.int8)
    rows = patches.transpose(1, 2).reshape(-1, patches.shape[1])
    sums = torch._int_mm(rows, x["weight"].to(torch.int8).reshape(K, -1).T).float()
    y = sums * (scale * x["weight_scale"])
    y = (y if x.get("bias") is None else y + x["bias"]).reshape(len(padded), -1, K).transpose(1, 2)
    places = positions(x["x"].shape[2:], params["padding"], taps, each(params["stride"], 2), (1, 1))
    return y.reshape(len(padded), K, *places)


def _linear_fp8(torch, x, params):
    kind = params["activations"]
    codes, scale = _codes(torch, x["x"], kind, params["scales"], x.get("x_scale"))
    weight, own = x["weight"].to(torch.float8_e4m3fn), x["weight_scale"]
    if (weight.float() != x["weight"]).any():  # the input comes widened to float32: it was E5M2
        weight = x["weight"].to(torch.float8_e5m2)
    if scale.ndim or len(own) > 1:  # torch takes a scale for each row of both, or one for each tensor
        scale, own = (
            scale.expand(len(codes), 1).contiguous(),
            own.reshape(1, -1).expand(1, len(weight)).contiguous(),
        )
    else:
        own = own.reshape(())
    return _finished(torch._scaled_mm(codes, weight.T, scale, own, out_dtype=torch.float32), x)


def _linear_w4a16(torch, x, params):
    """torch's product of 4 bits on a CPU, of 16 outputs at a time; its zero is s (8 - z)."""
    *outer, K = x["x"].shape
    q = torch.stack([x["weight"] & 15, x["weight"] >> 4], dim=-1).reshape(len(x["weight"]), -1)[:, :K].int()
    scale = x["group_scale"]
    zero = (8 - x["group_zero"].to(scale.dtype)) * scale if "group_zero" in x else torch.zeros_like(scale)
    more = -len(q) % 16
    q, scale, zero = (torch.nn.functional.pad(t, (0, 0, 0, more)) for t in (q, scale, zero))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
    both = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous().to(x["x"].dtype)
    rows = x["x"].reshape(-1, K)
    y = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, params["group"], both)[:, : len(q) - more]
    return (y if x.get("bias") is None else y + x["bias"]).reshape(*outer, -1)


def refuses(case: Case, storage: str, device: str) -> str | None:
    """Return why torch cannot answer a case of these operations; None if it can."""
    if case.op == "linear_w4a16":
        group, K = case.params.get("group", 32), case.inputs["x"].shape[-1]
        whole = group in (32, 64, 128, 256) and K % group == 0
        taken = whole and device == "cpu"
        return None if taken else "torch's product of 4 bits takes whole groups of 32 to 256, on a CPU"
    if case.op not in _IN_FEW_BITS:
        return None
    if storage != "float32" or device != "cpu":
        return f"scales would be rounded to {storage}" if device == "cpu" else "only tried on the CPU"
    if case.inputs["weight"].type not in ("i8", "f8_e4m3", "f8_e5m2"):
        return f"torch has no such product of {case.inputs['weight'].type}"
    if "y_scale" in case.inputs:
        return "torch's product of int8 has no codes of results"
    if case.params.get("zero_point"):
        return "torch's product of int8 has no zero points"
    return "torch rotates no activations" if case.params.get("rotation") else None


FUNCTIONS: dict[str, Function] = {
    "linear": lambda torch, x, params: torch.nn.functional.linear(x["x"], x["weight"], x.get("bias")),
    "linear_int8": _linear_int8,
    "conv2d_int8": _conv2d_int8,
    "linear_fp8": _linear_fp8,
    "linear_w4a16": _linear_w4a16,
}
