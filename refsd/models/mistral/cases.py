"""Cases of Mistral Small and Ministral 3, on tiny models of the same architecture."""

from typing import Any

from refsd.networks.cases import lone, mask, quiet, tiny_case, token_ids

# Ministral 3's rotation; of the lone case every number differs, so that each has a part in the answer.
_RELEASED: dict[str, Any] = {"theta": 1e6, "factor": 16.0, "query_beta": 0.1}
_OTHER: dict[str, Any] = {
    "theta": 1e4,
    "factor": 5.0,
    "trained_length": 12,
    "beta_fast": 1.5,
    "beta_slow": 0.25,
    "attention_factor": 1.25,
    "query_beta": 0.5,
}
_WORDS = {"input_ids": token_ids(37), "attention_mask": mask(37, 30, first_whole=True)}

CASES = [
    tiny_case("mistral-small", "mistral", "padded", _WORDS),
    quiet(tiny_case("mistral-small", "mistral", "quiet", {"input_ids": token_ids(21)})),
    tiny_case("ministral-3b", "mistral", "padded", _WORDS, **_RELEASED),
    lone(tiny_case("ministral-3b", "mistral", "stretched", {"input_ids": token_ids(29)}, **_OTHER)),
]  # fmt: skip
