"""Precisions in which a whole model may be computed, though others are declared."""

from collections.abc import Iterator
from dataclasses import replace

from refsd.numerics.profiles import (
    FP8_TENSOR,
    GGML_CPU,
    INT8_ROWS,
    SAGE_SUMS,
    TORCH_BF16,
    TORCH_F16,
    TORCH_TF32,
    Numerics,
)
from refsd.numerics.quantization import Int8Scores

# Precisions that an engine may compute in without declaring it.
_PROFILES = (TORCH_F16, TORCH_BF16, GGML_CPU, TORCH_TF32)
# To what linear layers may round their input, whatever the type of the weight.
_FEW_BITS = tuple(replace(rule, scale=scale) for rule in (FP8_TENSOR, INT8_ROWS) for scale in ("tensor", "row"))
_WEIGHTS = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i8")


def other_precisions(numerics: Numerics) -> Iterator[tuple[str, Numerics]]:
    """Yield precisions other than the declared one, in words and as numerics."""
    for profile in _PROFILES:
        if profile != numerics:
            yield f"it computes as {profile.name}, and not as {numerics.name}", profile
    if numerics.scores is None:
        codes = Int8Scores()
        yield f"attention's scores are products of {codes}", replace(numerics, scores=codes, sums=SAGE_SUMS)
    for how in _FEW_BITS:
        if how not in numerics.activations.values():
            yield f"activations rounded to {how}", replace(numerics, activations=dict.fromkeys(_WEIGHTS, how))
