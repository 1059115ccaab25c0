"""Cases of Qwen3-VL's vision tower, on tiny models of the same architecture."""

from refsd.networks.cases import latent, quiet, tiny_case

CASES = [
    tiny_case("qwen3-vl-8b-vision", "qwen3_vision", "wide", {"x": latent(3, 16, 40)}),
    # Heads of 16 channels: of the tiny model's own, of 4, rotary angles do not depend on theta.
    tiny_case("qwen3-vl-8b-vision", "qwen3_vision", "heads", {"x": latent(3, 24, 32)}, num_heads=4),
    quiet(tiny_case("qwen3-vl-8b-vision", "qwen3_vision", "quiet", {"x": latent(3, 24, 16)})),
]
