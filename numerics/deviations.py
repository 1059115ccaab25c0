"""Declare, by name, what engines do differently from the original.

A deviation is not rounding: it is another constant or another function. It is declared here and
shown in every report. The reference applies it only on request, to test whether it explains a
difference. It never passes silently: the report says "deviates", and only a waiver with an end date
turns that into a pass.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Deviation(NamedTuple):
    """A declared difference between an engine and the original.

    name:   "engine/what", the name in reports and waivers
    op:     the operation of arithmetic.py whose parameters it replaces, or "rms_norm of heads" for those of queries
            and keys
    sets:   parameter -> the engine's value, which replaces the model's
    what:   a sentence that describes it
    source: place in the engine's source
    """

    name: str
    op: str
    sets: Mapping[str, Any]
    what: str
    source: str


EPS = (0.0, 1.0)
# (operation, parameter) -> allowed values: a tuple of them, or a range of numbers
SETTABLE: dict[tuple[str, str], tuple] = {
    ("group_norm", "eps"): EPS,
    ("layer_norm", "eps"): EPS,
    ("rms_norm", "eps"): EPS,
    ("rms_norm of heads", "eps"): EPS,
    ("gelu", "approximate"): ("none", "tanh"),
    ("halve", "method"): ("nearest", "bilinear"),
    ("rope_angles", "precision"): ("float64", "float32", "float32, running"),
    ("text_projection", "transposed"): (False, True),
    ("adapter", "rank_one_is_columns"): (False, True),
}

DEVIATIONS: dict[str, Deviation] = {
    d.name: d
    for d in (
        Deviation(
            "sdcpp/group-norm-eps",
            "group_norm",
            {"eps": 1e-6},
            "every GroupNorm runs with eps 1e-6, where the UNet's ResBlocks and output norm have 1e-5",
            "stable-diffusion.cpp ggml_extend.hpp:1502-1513, ggml_ext_group_norm (GroupNorm keeps its eps)",
        ),
        Deviation(
            "sdcpp/gelu-tanh",
            "gelu",
            {"approximate": "tanh"},
            "the tanh approximation stands in for GELU's erf, in GEGLU and in OpenCLIP's MLP",
            "stable-diffusion.cpp common_block.hpp:205 (later common/block.hpp), GEGLU; clip.hpp:35, CLIPMLP",
        ),
        Deviation(
            "sdcpp/rank-one",
            "adapter",
            {"rank_one_is_columns": True},
            "a LoRA, LoHa or LoKr of rank 1 is scaled by alpha over its number of inputs, not over 1",
            "stable-diffusion.cpp lora.hpp: rank = ne[ggml_n_dims(t) - 1], of a tensor whose last axis is 1",
        ),
        Deviation(
            "sdcpp/rope-f32-angles",
            "rope_angles",
            {"precision": "float32"},
            "RoPE's angles are made by powf in float32, 1e-5 radians off at token 127; theirs are float64",
            "stable-diffusion.cpp rope.hpp (later common/rope.hpp), linspace and rope",
        ),
        Deviation(
            "sdcpp/openclip-projection",
            "text_projection",
            {"transposed": True},
            "bigG's pooled vector is projected by the transpose where a file has OpenCLIP's names, as SDXL's has",
            "stable-diffusion.cpp name_conversion.cpp:40 renames text_projection and leaves its axes; clip.hpp:321",
        ),
        Deviation(
            "sdcpp/radiance-bilinear",
            "halve",
            {"method": "bilinear"},
            "Radiance of __32x32__ halves its picture by means of four pixels, the original takes every other",
            "stable-diffusion.cpp flux.hpp:979-984, forward_chroma_radiance: fake_patch_size_x2, ggml_interpolate",
        ),
        Deviation(
            "sdcpp/rope-running-angles",
            "rope_angles",
            {"precision": "float32, running"},
            "a language model's angles are a running product in float32, 5e-5 radians off at token 511",
            "ggml ggml-cpu/ops.cpp, ggml_rope_cache_init, by way of stable-diffusion.cpp llm.hpp, ggml_rope_ext",
        ),
        Deviation(
            "sdcpp/zimage-qk-norm-eps",
            "rms_norm of heads",
            {"eps": 1e-6},
            "Z-Image's queries and keys are normalised with eps 1e-6, where the original has 1e-5",
            "stable-diffusion.cpp z_image.hpp, JointAttention: RMSNorm(head_dim) takes ggml_extend.hpp's default",
        ),
    )
}
