"""Cases of CLIP's and SigLIP's vision towers, on tiny models of the same architecture."""

from refsd.networks.cases import latent, tiny_case

CASES = [
    tiny_case("clip-vision-h", "clip-vision", "square", {"x": latent(3, 16, 16)}),
    tiny_case("siglip", "siglip", "square", {"x": latent(3, 16, 16)}),
]  # fmt: skip
