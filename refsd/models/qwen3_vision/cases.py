"""Cases of Qwen3-VL's vision tower, on tiny models of the same architecture."""

from refsd.networks.cases import latent, quiet, tiny_case

CASES = [
    tiny_case("qwen3-vl-8b-vision", "qwen3_vision", "wide", {"x": latent(3, 16, 40)}),
    quiet(tiny_case("qwen3-vl-8b-vision", "qwen3_vision", "quiet", {"x": latent(3, 24, 16)})),
]
