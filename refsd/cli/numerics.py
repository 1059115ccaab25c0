"""The option --numerics. The profiles' names are repeated here: numerics/profiles.py takes seconds to import."""

from typing import Annotated

import typer

PROFILES = (
    "float64",
    "float32",
    "torch-f32",
    "torch-f16",
    "torch-bf16",
    "torch-tf32",
    "torch-bf16-products",
    "torch-f16-sums",
    "torch-f32-channels-last",
    "torch-f16-channels-last",
    "torch-bf16-channels-last",
    "onnx-f32",
    "onnxruntime-cpu",
    "onnxruntime-q8",
    "onnxruntime-dynamic",
    "openvino-bf16",
    "openvino-q8",
    "ggml-cpu",
    "ggml-cpu-f16-sums",
    "ggml-cpu-flash",
    "winograd-f16",
    "ggml-vulkan",
    "ggml-vulkan-flash",
    "ggml-vulkan-f32",
    "ggml-vulkan-f32-flash",
    "comfy-int8",
    "comfy-fp8",
    "nvfp4-w4a4",
    "torchao-int8",
    "bitsandbytes-int8",
    "sdnq",
    "torch-f16-sage",
    "torch-bf16-sage",
)

Profile = Annotated[str, typer.Option("--numerics", help=f"{', '.join(PROFILES)}.")]
