"""Cases of Z-Image, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, mask, quiet

CASES = [
    denoiser_case("zimage", "zimage", "whole", latent(16, 6, 10), SHARE, 7, "f16"),
    denoiser_case("zimage", "zimage", "masked", latent(16, 12, 4), every(0), 37, "f16",
        context_mask=mask(37, 32, first_whole=True),
    ),
    quiet(denoiser_case("zimage", "zimage", "quiet", latent(16, 4, 6), every(0.5), 9)),
    quiet(denoiser_case("zimage", "zimage", "loud", latent(16, 4, 10), every(0.25), 7), -5),
]  # fmt: skip
