"""What each of ggml's backends declares for a case: a profile, without roundings that this build or shape omits.

library: what was measured on the library at hand; graphs: "ggml", "ggml-flash" or "ggml-direct"
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refsd.golden.case import Case
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.profiles import (
    GGML_CPU,
    GGML_CPU_F16_SUMS,
    GGML_CPU_FLASH,
    GGML_VULKAN,
    GGML_VULKAN_F32,
    GGML_VULKAN_F32_FLASH,
    GGML_VULKAN_FLASH,
    Float16Sums,
    Numerics,
)

Measured = Any  # an engine.GgmlLibrary, which imports this page

_EXACT_GELU = replace(GGML_CPU, name="ggml-cpu, gelu in f32", gelu=None)
_EXACT_CONV = replace(GGML_CPU, name="ggml-cpu, conv in f32", conv=None)
_FLASH_F32 = replace(GGML_CPU_FLASH, name="ggml-cpu-flash, sum in f32", flash_sum=None)


# Roundings of a float16 sum of K products in L lanes: K / L in a lane and log2(L) where lanes are added. A sum of
# L / 8 products before each rounding has no fewer from K = L on. What is left of a row adds up in float64.
_STEPS = 8


def _cpu(library: Measured, graphs: str, case: Case) -> Numerics:
    declared = _cpu_but_for_sums(library, graphs, case)
    lanes, op = library.f16_lanes, {"linear": "linear", "conv2d": "conv", "conv3d": "conv"}.get(case.op)
    if not op or not lanes or graphs == "ggml-flash" or case.inputs["weight"].type == "f32":
        return declared
    if math.prod(case.inputs["weight"].shape[1:]) < lanes or (op == "linear" and _weight(case) != "f16"):
        return declared
    return replace(declared, name=f"{declared.name}, sums in f16", sums={op: Float16Sums(lanes // _STEPS)})


def _cpu_but_for_sums(library: Measured, graphs: str, case: Case) -> Numerics:
    if graphs == "ggml-flash":
        return GGML_CPU_FLASH if _half_sum(library, case) else _FLASH_F32
    if case.op in ("gelu", "gelu_tanh", "quick_gelu"):
        return GGML_CPU if library.gelu_tables[case.op] else _EXACT_GELU
    if case.op == "geglu":
        return _EXACT_GELU
    if case.op in ("conv2d", "conv3d") and case.inputs["weight"].type == "f32":
        # Direct convolutions round patches to the filter's type; a float32 filter leaves them unrounded.
        direct = graphs == "ggml-direct" or groups(case) > 1
        return _EXACT_CONV if direct or not library.rounds_f32_patches[case.op] else GGML_CPU
    return GGML_CPU


# ggml-vulkan.cpp, mul_mat_vec_max_cols: for so many rows each product is a vector's, in float32.
_VECTORS = 8
_VULKAN_F32_SUMS = replace(GGML_VULKAN, name="ggml-vulkan, sums in f32", sums={})
_VULKAN_BF16 = replace(_VULKAN_F32_SUMS, name="ggml-vulkan, bf16 weights", products="bf16")
_VULKAN_EXACT = replace(GGML_VULKAN_F32, name="ggml-vulkan, all in f32", conv=None)


def _vulkan(library: Measured, graphs: str, case: Case) -> Numerics:
    if graphs == "ggml-flash":
        return GGML_VULKAN_FLASH if library.multiplies_in_f16 else GGML_VULKAN_F32_FLASH
    if case.op in ("conv2d", "conv3d"):
        return _vulkan_conv(library, graphs, case)
    if not library.multiplies_in_f16:
        return GGML_VULKAN_F32
    if case.op in ("attention", "attention_softcap"):
        B, L, H, _ = case.inputs["q"].shape
        return _VULKAN_EXACT if L == 1 or (L <= _VECTORS and B * H == 1) else _VULKAN_F32_SUMS
    if case.op == "linear":
        weight, rows = case.inputs["weight"].type, math.prod(case.inputs["x"].shape[:-1])
        if rows <= _VECTORS:
            return _VULKAN_EXACT
        return {"f32": _VULKAN_F32_SUMS, "f64": _VULKAN_F32_SUMS, "bf16": _VULKAN_BF16}.get(weight, GGML_VULKAN)
    return GGML_VULKAN


def _vulkan_conv(library: Measured, graphs: str, case: Case) -> Numerics:
    """A convolution is im2col, whose patches are the first factor of mul_mat, or one shader in float32."""
    weight = case.inputs["weight"]
    exact = weight.type == "f32" and not library.rounds_f32_patches.get(case.op)
    if graphs == "ggml-direct" or (groups(case) > 1 and weight.type == "f32"):
        return _VULKAN_EXACT
    if not library.multiplies_in_f16:
        return _VULKAN_EXACT if exact else GGML_VULKAN_F32
    return _VULKAN_F32_SUMS if exact else GGML_VULKAN


# ggml-blas.cpp widens the weight to float32 and calls sgemm.
_BLAS = replace(GGML_CPU, name="ggml-blas", activations={})
# From source only (ggml 0.25.3), judged on no such device yet. ggml-cuda: common.cuh sets
# CUBLAS_TF32_TENSOR_OP_MATH for float32 weights; batched_mul_mat_traits in ggml-cuda.cu has CUBLAS_COMPUTE_16F for
# float16 ones; norm.cu takes the variance in one pass.
_CUDA = Numerics("ggml-cuda", "float32", "float32", products="tf32", conv="f16", one_pass=("layer_norm",))
_CUDA_F16 = replace(_CUDA, name="ggml-cuda, f16 weights", products="f16", sums={"linear": Float16Sums(step=16)})
_CUDA_BF16 = replace(_CUDA, name="ggml-cuda, bf16 weights", products="bf16")
_CUDA_FLASH = replace(_CUDA, name="ggml-cuda-flash", flash="f16")
# ggml-metal.metal, kernel_mul_mm: both factors in half (bfloat for bfloat16 weights), sums in float32.
_METAL = Numerics("ggml-metal", "float32", "float32", products="f16", conv="f16", shader=True)
_METAL_BF16 = replace(_METAL, name="ggml-metal, bf16 weights", products="bf16")
_METAL_FLASH = replace(_METAL, name="ggml-metal-flash", flash="f16", flash_sum=None)


def _cuda(library: Measured, graphs: str, case: Case) -> Numerics:
    if graphs == "ggml-flash":
        return _CUDA_FLASH
    return {"f16": _CUDA_F16, "bf16": _CUDA_BF16}.get(_weight(case), _CUDA)


def _metal(library: Measured, graphs: str, case: Case) -> Numerics:
    if graphs == "ggml-flash":
        return _METAL_FLASH
    return _METAL_BF16 if _weight(case) == "bf16" else _METAL


def _weight(case: Case) -> str:
    return case.inputs["weight"].type if case.op == "linear" else ""


# backend, as ggml names it -> what it declares
DECLARED: dict[str, Callable[[Measured, str, Case], Numerics]] = {
    "CPU": _cpu,
    "BLAS": lambda library, graphs, case: _BLAS,
    "Vulkan": _vulkan,
    "CUDA": _cuda,
    "MTL": _metal,
    "Metal": _metal,
}


def undeclared(backend: str, case: Case) -> str | None:
    """Say why nobody declares how a backend rounds in a case; None if it is declared."""
    if backend not in DECLARED:
        return f"how ggml's {backend} rounds is not declared: {', '.join(DECLARED)} are"
    if backend == "CUDA" and _weight(case) in BLOCK_TYPES:
        return f"to what ggml's CUDA rounds activations for {_weight(case)} weights is not declared"
    return None


def _cpu_model(library: Measured, flash: bool, weight: str) -> Numerics:
    declared = GGML_CPU_FLASH if flash else GGML_CPU
    if not library.f16_lanes:
        return declared
    return replace(declared, name=f"{declared.name}-f16-sums", sums=GGML_CPU_F16_SUMS.sums)


def _vulkan_model(library: Measured, flash: bool, weight: str) -> Numerics:
    if not library.multiplies_in_f16:
        return GGML_VULKAN_F32_FLASH if flash else GGML_VULKAN_F32
    declared = GGML_VULKAN_FLASH if flash else GGML_VULKAN
    if weight not in ("f32", "bf16"):
        return declared
    # Of filters stable-diffusion.cpp makes float16, whatever the file holds.
    return replace(declared, name=f"{declared.name}, {weight} weights", sums={"conv": declared.sums["conv"]})


# backend -> what it declares for a whole model: library, whether attention is flash_attn_ext, the weights' type
MODELS: dict[str, Callable[[Measured, bool, str], Numerics]] = {
    "CPU": _cpu_model,
    "Vulkan": _vulkan_model,
}


def _half_sum(library: Measured, case: Case) -> bool:
    _, L, _, D = case.inputs["q"].shape
    _, J, _, E = case.inputs["v"].shape
    return library.sums_flash_in_f16(L, J, D, E)


def groups(case: Case) -> int:
    """The groups of a convolution."""
    return case.params.get("groups", 1)
