"""Cases of Qwen2.5-VL and Qwen3-VL, on tiny models of the same architecture."""

from refsd.golden.recipe import Recipe
from refsd.networks.cases import WIDTH, mask, positions, quiet, tiny_case, token_ids

_PLACES = 18  # tokens 2 of token_ids(37, 6), 9 in each prompt
CASES = [
    tiny_case(
        "qwen2.5-vl-7b", "qwen2_5_vl", "padded", {"input_ids": token_ids(65), "attention_mask": mask(65, 40)}
    ),
    tiny_case("qwen2.5-vl-7b", "qwen2_5_vl", "image", {"input_ids": token_ids(37), "positions": positions(37)}),
    # Not 6: its queries and keys have biases, so that scores are small, but not 0. torch's fused attention rounds
    # exp(score - peak) to float16 before the product with the values, and values just below 1 become 1: o_proj then
    # has a gain of 9e-5, which torch-f16 does not declare (margin 1.20; 0.26 with torch's unfused attention).
    quiet(tiny_case("qwen2.5-vl-7b", "qwen2_5_vl", "quiet", {"input_ids": token_ids(21)}), 4),
    tiny_case("qwen3-vl-4b", "qwen3_vl", "layers", {"input_ids": token_ids(37)}, layers=[1, 2]),
    tiny_case(
        "qwen3-vl-4b",
        "qwen3_vl",
        "image",
        {"input_ids": token_ids(65), "attention_mask": mask(65, 40), "positions": positions(65)},
        final_norm=False,
    ),
    tiny_case(
        "qwen3-vl-4b",
        "qwen3_vl",
        "pictures",
        {
            "input_ids": token_ids(37, 6),
            "positions": positions(37),
            "pictures": Recipe((_PLACES, WIDTH)),
            "deepstack": Recipe((2, _PLACES, WIDTH)),
        },
        image_token=2,
    ),
    quiet(tiny_case("qwen3-vl-4b", "qwen3_vl", "quiet", {"input_ids": token_ids(21)})),
]
