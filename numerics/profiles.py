"""Describe how an engine rounds.

The same model code runs under each profile. `float64` is the truth, `float32` the fast path. The
other profiles declare the rounding of real engines, from which the error bounds are derived.
What an engine does *differently* (another eps, another GELU) is not numerics: see deviations.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import ml_dtypes
import numpy as np

from refsd.kernels.linear_quantized import DOTS
from refsd.numerics.quantization import Int8Scores, Quantization


@dataclass(frozen=True)
class Float16Sums:
    """Sums of products in float16: kernels/products_f16.py.

    step: products that are added up exactly, or in float32, before each rounding
    run:  products after which the sum is added to one in `compute` and begins again; 0: never
    """

    step: int = 1
    run: int = 0


@dataclass(frozen=True)
class Numerics:
    """The rounding of an engine.

    compute:     dtype inside an operation, "float64" or "float32"
    storage:     dtype to which every result and every weight is rounded
    activations: weight type -> type, or few bits and their scales, to which linear rounds its input
    products:    type to which linear layers and attention round both factors of their products: "tf32", "bf16" or
                 "f16"; None: no rounding. For the input, an entry in `activations` takes precedence.
    conv:        type to which conv2d rounds its weight and its patches; None: no rounding
    gelu:        type to which GELUs round their input and their result (ggml's table); None: no rounding
    flash:       "f16": fused attention, with q, k, v and the mask in float16; None: not fused
    flash_sum:   "f16": fused attention's running sum is in float16; None: in float32
    convolution: "im2col" (sums in `compute`, BLAS's order), "direct" (the definition), "fast" (Winograd where it is
                 faster), "winograd-f16" (kernels/conv2d_winograd_f16.py, on the layers to which it applies)
    attention:   "three-pass" or "online" (float32, without storing a row of scores)
    packed:      True: linear layers whose weights stay in memory go by kernels/linear_packed.py, others by BLAS
    scores:      attention's scores as products of int8, where there is no mask; its weights and values are then in
                 float16, and `sums` of attention are those of their products. None: like the values
    sums:        "linear", "conv" or "attention" -> how its products accumulate in float16; absent: in `compute`
    logistic:    "rational": tanh, sigmoid and its like by numerics/rational_logistic.py; None: by exp
    shader:      exp, and what is made of it, as in numerics/shader_functions.py; False: a math library's
    requested:   "sums", "activations" -> the precision that a caller requested: the fields above are the request
    one_pass:    norms whose variance is E[x^2] - E[x]^2, both sums in `compute`: "group_norm", "layer_norm"
    """

    name: str
    compute: str = "float64"
    storage: str = "float64"
    activations: Mapping[str, str | Quantization] = field(default_factory=dict)
    products: str | None = None
    conv: str | None = None
    gelu: str | None = None
    flash: str | None = None
    flash_sum: str | None = "f16"
    convolution: str = "im2col"
    attention: str = "three-pass"
    packed: bool = False
    logistic: str | None = None
    one_pass: tuple[str, ...] = ()
    shader: bool = False
    scores: Int8Scores | None = None
    sums: Mapping[str, Float16Sums] = field(default_factory=dict)
    requested: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        for op in self.sums:
            field = "conv" if op == "conv" else "products"
            if (op == "linear" and "f16" in self.activations.values()) or (op == "attention" and self.scores):
                continue
            if getattr(self, field) != "f16" and (self.storage != "float16" or getattr(self, field) is not None):
                raise ValueError(f'sums of {op} in float16 have float16 factors: expected {field} "f16"')

    def sums_of(self, op: str, input_type: str | Quantization | None = None) -> Float16Sums | None:
        """Return how products accumulate; None: in `compute`, as where a linear layer's factors are not float16.

        input_type: to which a linear layer's input is rounded; None: to storage
        """
        halves = input_type == "f16" or (input_type is None and (op != "linear" or self.storage == "float16"))
        return self.sums.get(op) if halves else None

    def input_of(self, weight_type: str) -> str | Quantization | None:
        """Return the type to which a linear layer rounds its input. weight_type: StoredTensor.product_type"""
        stored, _, rotation = weight_type.partition("/")
        through = self.activations.get(stored) or self.products
        if rotation and isinstance(through, Quantization):
            return replace(through, rotation=int(rotation))
        return through

    def attending(self, head: int, plain: bool) -> "Numerics":
        """Return the rounding of one attention: kernels whose scores are in int8 leave some to others.

        head: channels of a head; plain: without a mask, sinks or a cap
        """
        if self.scores is None or (plain and head <= self.scores.largest_head):
            return self
        sums = {op: how for op, how in self.sums.items() if op != "attention"}
        return replace(self, scores=None, sums=sums)

    @property
    def compute_dtype(self) -> np.dtype:
        return DTYPES[self.compute]

    @property
    def storage_dtype(self) -> np.dtype:
        return DTYPES[self.storage]


DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

FLOAT64 = Numerics("float64")
FLOAT32 = Numerics("float32", "float32", "float32", convolution="fast", attention="online", packed=True)
TORCH_F32 = Numerics("torch-f32", "float32", "float32")
TORCH_F16 = Numerics("torch-f16", "float32", "float16")
TORCH_BF16 = Numerics("torch-bf16", "float32", "bfloat16")
# torch.set_float32_matmul_precision("high") on a GPU with tensor cores; "medium" rounds factors to bfloat16.
TORCH_TF32 = Numerics("torch-tf32", "float32", "float32", products="tf32", conv="tf32")
TORCH_BF16_PRODUCTS = Numerics("torch-bf16-products", "float32", "float32", products="bf16", conv="bf16")
# torch.backends.cuda.matmul.allow_fp16_accumulation (ComfyUI: --fast fp16_accumulation): tensor cores add up 16
# products and the sum before them, and round. Fused attention and cuDNN's convolutions keep float32 sums.
_TENSOR_CORES = MappingProxyType({"linear": Float16Sums(step=16)})
TORCH_F16_SUMS = replace(TORCH_F16, name="torch-f16-sums", sums=_TENSOR_CORES)
# A model in torch.channels_last on a CPU: aten/src/ATen/native/cpu/group_norm_kernel.cpp, ColumnwiseMoments.
_CHANNELS_LAST = ("group_norm",)
TORCH_F32_CHANNELS_LAST = replace(TORCH_F32, name="torch-f32-channels-last", one_pass=_CHANNELS_LAST)
TORCH_F16_CHANNELS_LAST = replace(TORCH_F16, name="torch-f16-channels-last", one_pass=_CHANNELS_LAST)
TORCH_BF16_CHANNELS_LAST = replace(TORCH_BF16, name="torch-bf16-channels-last", one_pass=_CHANNELS_LAST)

# What reads ONNX in float32. The standard's own bodies of GroupNormalization and LayerNormalization take the
# variance as E[x^2] - E[x]^2 (onnx/defs/nn/defs.cc), so engines may; onnxruntime 1.32 does so in the former alone.
ONNX_F32 = replace(TORCH_F32, name="onnx-f32", one_pass=("group_norm", "layer_norm"))
# onnxruntime's CPU provider: mlas/lib/logistic.cpp, mlas/lib/tanh.cpp.
ONNXRUNTIME_CPU = replace(ONNX_F32, name="onnxruntime-cpu", logistic="rational")
# The same where it multiplies the codes of weights in blocks by activations in 8 bits: MatMulNBits of accuracy
# level 4, to which it fuses DequantizeLinear and MatMul by default.
INT8_GROUPS = Quantization("int8", "none", block=32, block_scale="f32")
_IN_GROUPS = MappingProxyType({"q4_0": INT8_GROUPS, "q8_0": INT8_GROUPS})
ONNXRUNTIME_Q8 = replace(ONNXRUNTIME_CPU, name="onnxruntime-q8", activations=_IN_GROUPS)
# The same where linear layers of int8 were quantised dynamically, as its quantize_dynamic writes them:
# DynamicQuantizeLinear and MatMulInteger.
UINT8_TENSOR = Quantization("uint8", "tensor", zero_point=True)
_DYNAMIC = MappingProxyType({**_IN_GROUPS, "i8": UINT8_TENSOR})
ONNXRUNTIME_DYNAMIC = replace(ONNXRUNTIME_CPU, name="onnxruntime-dynamic", activations=_DYNAMIC)
# OpenVINO's CPU plugin where INFERENCE_PRECISION_HINT is bf16, its default on processors with AVX512-BF16 or AMX.
OPENVINO_BF16 = replace(ONNX_F32, name="openvino-bf16", storage="bfloat16")
# The same on other processors, where activations that meet weights in blocks are rounded to 8 bits in groups of 32
# (DYNAMIC_QUANTIZATION_GROUP_SIZE) if they have VNNI. Its scales are float32, q8_0's float16: no tighter.
OPENVINO_Q8 = replace(ONNX_F32, name="openvino-q8", activations=MappingProxyType({"q4_0": "q8_0", "q8_0": "q8_0"}))

# ggml-cpu.c, type_traits_cpu[].vec_dot_type; ggml_conv_2d (im2col to F16); vec.h, ggml_table_gelu_f16.
GGML_CPU = Numerics(
    "ggml-cpu",
    "float32",
    "float32",
    activations=MappingProxyType(
        {
            "f16": "f16",
            "bf16": "bf16",
            **{weight: dot.activation for weight, dot in DOTS.items()},
        }
    ),
    conv="f16",
    gelu="f16",
)
# ggml-cpu built for AVX512-FP16: simd-mappings.h, GGML_F16x32_FMA. 128 lanes add up in float16, then each other.
GGML_CPU_F16_SUMS = replace(
    GGML_CPU,
    name="ggml-cpu-f16-sums",
    sums=MappingProxyType({"linear": Float16Sums(step=16), "conv": Float16Sums(step=16)}),
)
# ggml-cpu with ggml_flash_attn_ext instead of mul_mat, soft_max, mul_mat.
GGML_CPU_FLASH = replace(GGML_CPU, name="ggml-cpu-flash", flash="f16")
# ggml-vulkan on a device with float16 (ggml 0.25.3). mul_mm.comp holds both factors in float16 where more than 8
# rows are multiplied; ggml_vk_get_mul_mat_mat_f16acc adds up in float16 too unless the weight is float32 or
# bfloat16; flash_attn.comp likewise. Without float16 (GGML_VK_DISABLE_F16) only im2col's patches are in float16.
# norm.comp takes the variance in one pass; rms_norm.comp and group_norm.comp need not.
_SERIAL = MappingProxyType({"linear": Float16Sums(), "conv": Float16Sums()})
_SHADERS = Numerics("shaders", "float32", "float32", conv="f16", one_pass=("layer_norm",), shader=True)
GGML_VULKAN = replace(_SHADERS, name="ggml-vulkan", products="f16", sums=_SERIAL)
GGML_VULKAN_FLASH = replace(GGML_VULKAN, name="ggml-vulkan-flash", flash="f16")
GGML_VULKAN_F32 = replace(_SHADERS, name="ggml-vulkan-f32")
GGML_VULKAN_F32_FLASH = replace(GGML_VULKAN_F32, name="ggml-vulkan-f32-flash", flash="f16", flash_sum=None)
# The fork of stable-diffusion.cpp that uses F(2x2, 3x3) where possible, with the filter, U, V and M in float16.
WINOGRAD_F16 = replace(GGML_CPU, name="winograd-f16", convolution="winograd-f16")

# What ComfyUI's files in few bits are multiplied with on cards that can: comfy_kitchen 0.2.40, backends/eager:
# int8_linear (a scale for each row, rotated where the weight is; W4A8 too, whose codes of 4 bits become int8 before
# they are multiplied: backends/eager/w4a8_int8.py), TensorCoreFP8Layout, TensorCoreNVFP4Layout and
# TensorCoreMXFP8Layout (one scale for the tensor, and for blocks of it).
INT8_ROWS = Quantization("int8", "row")
FP8_TENSOR = Quantization("f8_e4m3", "tensor")
NVFP4 = Quantization("f4_e2m1", "tensor", block=16)
MXFP8 = Quantization("f8_e4m3", "none", block=32, block_scale="e8m0")
INT4_ROWS = Quantization("int4", "row")
COMFY_INT8 = replace(
    TORCH_BF16, name="comfy-int8", activations=MappingProxyType({"i8": INT8_ROWS, "i4": INT4_ROWS})
)
_FP8 = MappingProxyType({"f8_e4m3": FP8_TENSOR, "f8_e5m2": FP8_TENSOR})
COMFY_FP8 = replace(TORCH_BF16, name="comfy-fp8", activations=_FP8)
MXFP4 = replace(MXFP8, type="f4_e2m1")
_W4A4 = MappingProxyType({"nvfp4_comfy": NVFP4, "mxfp8": MXFP8})
NVFP4_W4A4 = replace(TORCH_BF16, name="nvfp4-w4a4", activations=_W4A4)

# torchao 0.18.0, Int8DynamicActivationInt8WeightConfig: workflows/int8/int8_tensor.py, choose_qparams_affine. Its
# scales are never below 1.2e-7; here they are, in rows whose largest number is below 1.5e-5.
TORCHAO_ROWS = Quantization("int8", "row", largest=127.5, quotient="compute")
TORCHAO_INT8 = replace(TORCH_BF16, name="torchao-int8", activations=MappingProxyType({"i8": TORCHAO_ROWS}))

# LLM.int8(): bitsandbytes 0.50.2, backends/default/ops.py, int8_vectorwise_quant and int8_mixed_scaled_mm; the
# threshold is transformers'. Inputs pass through float16, whatever their type.
LLM_ROWS = Quantization("int8", "row", quotient="wide", outliers=6.0)
LLM_INT8 = replace(TORCH_F16, name="bitsandbytes-int8", activations=MappingProxyType({"i8": LLM_ROWS}))

# SDNQ, SD.Next's quantiser, with use_quantized_matmul: sdnq 0.2.8, quant_utils.py, layers/linear. Codes and scales
# are made in float32, whatever type the activations have; fewer rows than 32 meet the widened weight. FP8 on cards
# that multiply it. Weights are multiplied so if both sides are multiples of 16, at least 32. Not described: uint8
# weights, whose activations span the least to the largest number, and weights in groups, made int8 as they pass.
SDNQ_ROWS = Quantization("int8", "row", quotient="wide", fewest=32)
SDNQ_FP8 = replace(SDNQ_ROWS, type="f8_e4m3")
_SDNQ = MappingProxyType({"i8": SDNQ_ROWS, "f8_e4m3": SDNQ_FP8, "f8_e5m2": SDNQ_FP8})
SDNQ = replace(TORCH_BF16, name="sdnq", activations=_SDNQ)

# SageAttention 1 (sageattention 1.0.6, attn_qk_int8_per_block.py) in place of torch's attention: ComfyUI's
# --use-sage-attention, diffusers' attention backend "sage". Sums of 64 keys are in float16.
SAGE_SUMS = MappingProxyType({"attention": Float16Sums(step=1, run=64)})
TORCH_F16_SAGE = replace(TORCH_F16, name="torch-f16-sage", scores=Int8Scores(), sums=SAGE_SUMS)
TORCH_BF16_SAGE = replace(TORCH_BF16, name="torch-bf16-sage", scores=Int8Scores(), sums=SAGE_SUMS)

PROFILES: dict[str, Numerics] = {
    n.name: n
    for n in (
        *(FLOAT64, FLOAT32, TORCH_F32, TORCH_F16, TORCH_BF16, TORCH_TF32, TORCH_BF16_PRODUCTS, TORCH_F16_SUMS),
        *(TORCH_F32_CHANNELS_LAST, TORCH_F16_CHANNELS_LAST, TORCH_BF16_CHANNELS_LAST),
        *(ONNX_F32, ONNXRUNTIME_CPU, ONNXRUNTIME_Q8, ONNXRUNTIME_DYNAMIC, OPENVINO_BF16, OPENVINO_Q8),
        *(GGML_CPU, GGML_CPU_F16_SUMS, GGML_CPU_FLASH, WINOGRAD_F16),
        *(GGML_VULKAN, GGML_VULKAN_FLASH, GGML_VULKAN_F32, GGML_VULKAN_F32_FLASH),
        *(COMFY_INT8, COMFY_FP8, NVFP4_W4A4, TORCHAO_INT8, LLM_INT8, SDNQ),
        *(TORCH_F16_SAGE, TORCH_BF16_SAGE),
    )
}
