"""Cases of Qwen-Image 2.1's autoencoder, on tiny models of the same architecture."""

from refsd.networks.cases import PICTURE, latent, tiny_case

CASES = [
    tiny_case("qwen-image21-vae", "qwen-image21-vae-encoder", "tall", {"x": latent(4, 48, 32, **PICTURE)}),
    tiny_case("qwen-image21-vae", "qwen-image21-vae-decoder", "wide", {"z": latent(64, 2, 3)}),
]  # fmt: skip
