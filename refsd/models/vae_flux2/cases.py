"""Cases of FLUX.2's autoencoder, on tiny models of the same architecture."""

from refsd.networks.cases import PICTURE, latent, lone, tiny_case

CASES = [
    tiny_case("flux2-vae", "flux2-vae-encoder", "tall", {"x": latent(3, 48, 16, **PICTURE)}),
    tiny_case("flux2-vae", "flux2-vae-decoder", "wide", {"z": latent(128, 1, 3)}),
    lone(tiny_case("flux2-vae", "flux2-vae-decoder", "eps", {"z": latent(128, 3, 2)}, eps=0.0625)),
    lone(tiny_case("flux2-vae", "flux2-vae-decoder", "squares", {"z": latent(128, 2, 3)}, squares_first=True)),
]  # fmt: skip
