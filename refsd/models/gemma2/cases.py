"""Cases of Gemma 2, on tiny models of the same architecture."""

from refsd.networks.cases import mask, tiny_case, token_ids

CASES = [
    tiny_case("gemma2-2b", "gemma2", "padded", {"input_ids": token_ids(37), "attention_mask": mask(37, 30)}),
]  # fmt: skip
