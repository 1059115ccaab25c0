"""Cases of Qwen2.5-VL's vision tower, on a tiny model of the same architecture: pictures that no window divides."""

from refsd.networks.cases import latent, tiny_case

CASES = [
    tiny_case("qwen2.5-vl-mmproj", "qwen2_5_vision", "wide", {"x": latent(3, 84, 168)}, whole=[1]),
]
