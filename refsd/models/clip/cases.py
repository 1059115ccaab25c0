"""Cases of CLIP, on tiny models of the same architecture."""

from refsd.networks.cases import tiny_case, token_ids

CASES = [
    tiny_case("clip-h", "clip", "ended", {"input_ids": token_ids(77, 40)}, "f16", eos=7),
    tiny_case("clip-l", "clip", "ended", {"input_ids": token_ids(33, 40)}, eos=7),
    tiny_case("clip-l", "clip", "penultimate", {"input_ids": token_ids(9)}, clip_skip=2, final_norm=False),
    tiny_case("clip-l", "clip", "skipped", {"input_ids": token_ids(9)}, clip_skip=2),
    tiny_case("clip-g", "clip_g", "ended", {"input_ids": token_ids(33, 40)}, "f16", eos=7),
    tiny_case("clip-g", "clip_g", "penultimate", {"input_ids": token_ids(9)}, "f16", clip_skip=2, final_norm=False),
]  # fmt: skip
