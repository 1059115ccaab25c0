"""Cases of Qwen2.5-VL's vision tower, on a tiny model of the same architecture: pictures that no window divides."""

from refsd.networks.cases import latent, tiny_case

CASES = [
    tiny_case("qwen2.5-vl-mmproj", "qwen2_5_vision", "wide", {"x": latent(3, 84, 168)}, whole=[1]),
    # Heads of 16 channels: of the tiny model's own, of 4, rotary angles do not depend on theta.
    tiny_case("qwen2.5-vl-mmproj", "qwen2_5_vision", "heads", {"x": latent(3, 56, 84)}, whole=[1], num_heads=4),
]
