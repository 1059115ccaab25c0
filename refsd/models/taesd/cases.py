"""Cases of the tiny autoencoders, on tiny models of the same architecture."""

from refsd.networks.cases import PICTURE, latent, tiny_case

CASES = [
    tiny_case("taesd", "tae-encoder", "odd", {"x": latent(3, 19, 33, **PICTURE)}),
    tiny_case("taesd", "tae-decoder", "outliers", {"z": latent(4, 5, 3, data="outliers", exponent=-18)}),
    tiny_case("taef1", "tae-decoder", "wide", {"z": latent(16, 3, 7)}),
]  # fmt: skip
