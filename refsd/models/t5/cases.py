"""Cases of T5, on tiny models of the same architecture."""

from refsd.networks.cases import mask, tiny_case, token_ids

CASES = [
    tiny_case("t5xxl", "t5", "long", {"input_ids": token_ids(151)}),
    tiny_case("t5xxl", "t5", "padded",
        {"input_ids": token_ids(33), "attention_mask": mask(33, 20, first_whole=True)},
    ),
    tiny_case("umt5", "t5", "padded",
        {"input_ids": token_ids(33), "attention_mask": mask(33, 20, first_whole=True)},
    ),
]  # fmt: skip
