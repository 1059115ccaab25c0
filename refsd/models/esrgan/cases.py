"""Cases of ESRGAN, on tiny models of the same architecture."""

from refsd.networks.cases import PICTURE, latent, lone, tiny_case

CASES = [
    tiny_case("esrgan", "esrgan", "odd", {"x": latent(3, 7, 12, **PICTURE)}),
    lone(tiny_case("esrgan-x2", "esrgan", "even", {"x": latent(3, 6, 10, **PICTURE)})),
]  # fmt: skip
