"""Cases of AutoencoderKL, on tiny models of the same architecture."""

from refsd.networks.cases import PICTURE, latent, quiet, tiny_case

CASES = [
    tiny_case("flux-vae", "vae-encoder", "tall", {"x": latent(3, 48, 16, **PICTURE)}),
    quiet(tiny_case("flux-vae", "vae-encoder", "quiet", {"x": latent(3, 16, 24, **PICTURE)})),
    tiny_case("flux-vae", "vae-decoder", "wide", {"z": latent(16, 2, 5)}),
    quiet(tiny_case("flux-vae", "vae-decoder", "quiet", {"z": latent(16, 3, 2)})),
    quiet(tiny_case("flux-vae", "vae-decoder", "loud", {"z": latent(16, 2, 4)}), -2),
]  # fmt: skip
