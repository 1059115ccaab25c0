"""Cases of Mistral Small, on tiny models of the same architecture."""

from refsd.networks.cases import mask, quiet, tiny_case, token_ids

CASES = [
    tiny_case("mistral-small", "mistral", "padded", {"input_ids": token_ids(37), "attention_mask": mask(37, 30)}),
    quiet(tiny_case("mistral-small", "mistral", "quiet", {"input_ids": token_ids(21)})),
]  # fmt: skip
