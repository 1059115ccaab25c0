"""Cases of Wan's autoencoders, on tiny models of the same architecture."""

from refsd.networks.cases import PICTURE, tiny_case, video

CASES = [
    tiny_case("wan-vae", "wan-vae-encoder", "picture", {"x": video(3, 1, 19, 32, **PICTURE)}),
    tiny_case("wan-vae", "wan-vae-encoder", "frames", {"x": video(3, 9, 16, 8, **PICTURE)}),
    tiny_case("wan-vae", "wan-vae-decoder", "picture", {"z": video(16, 1, 2, 3)}),
    tiny_case("wan-vae", "wan-vae-decoder", "frames", {"z": video(16, 3, 2, 1)}),
    tiny_case("wan22-vae", "wan22-vae-encoder", "picture", {"x": video(3, 1, 32, 48, **PICTURE)}),
    tiny_case("wan22-vae", "wan22-vae-encoder", "frames", {"x": video(3, 9, 32, 16, **PICTURE)}),
    tiny_case("wan22-vae", "wan22-vae-decoder", "picture", {"z": video(48, 1, 2, 3)}),
    tiny_case("wan22-vae", "wan22-vae-decoder", "frames", {"z": video(48, 3, 2, 1)}),
]  # fmt: skip
