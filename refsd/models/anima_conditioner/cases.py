"""Cases of Anima's text conditioner, on a tiny model of the same architecture."""

from refsd.networks.cases import context, mask, quiet, tiny_case, token_ids

_WHOLE = {"input_ids": token_ids(9), "context": context(7)}
_MASKED = {"attention_mask": mask(9, 4), "context_mask": mask(7, 3)}

CASES = [
    tiny_case("anima-conditioner", "anima-conditioner", "whole", _WHOLE, length=5),
    tiny_case("anima-conditioner", "anima-conditioner", "masked", {**_WHOLE, **_MASKED}, length=13),
    quiet(tiny_case("anima-conditioner", "anima-conditioner", "quiet", _WHOLE, length=9)),
]
