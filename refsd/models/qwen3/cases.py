"""Cases of Qwen3, on tiny models of the same architecture."""

from refsd.networks.cases import mask, quiet, tiny_case, token_ids

CASES = [
    tiny_case("qwen3-4b", "qwen3", "whole", {"input_ids": token_ids(37)}),
    tiny_case("qwen3-4b", "qwen3", "padded",
        {"input_ids": token_ids(65), "attention_mask": mask(65, 40, first_whole=True)},
    ),
    quiet(tiny_case("qwen3-4b", "qwen3", "quiet", {"input_ids": token_ids(21)})),
]  # fmt: skip
