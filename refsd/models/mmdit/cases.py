"""Cases of MMDiT, on tiny models of the same architecture."""

from refsd.networks.cases import DRAWN, denoiser_case, every, latent, pooled, quiet

CASES = [
    denoiser_case("sd3-medium", "mmdit", "between", latent(16, 6, 10), DRAWN, 7, y=pooled(96)),
    denoiser_case("sd35-medium", "mmdit", "first-step", latent(16, 14, 4), every(1000), 33, y=pooled(96)),
    denoiser_case("sd35-large", "mmdit", "last-step", latent(16, 4, 18), every(0), 5, y=pooled(96)),
    quiet(denoiser_case("sd35-large", "mmdit", "quiet", latent(16, 8, 6), every(500), 5, y=pooled(96))),
]  # fmt: skip
