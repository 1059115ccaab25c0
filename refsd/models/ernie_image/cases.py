"""Cases of Ernie-Image, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, mask, quiet

CASES = [
    denoiser_case("ernie-image", "ernie-image", "whole", latent(16, 3, 5), SHARE, 7),
    denoiser_case(
        "ernie-image", "ernie-image", "masked", latent(16, 4, 2), every(0.25), 13, context_mask=mask(13, 8)
    ),
    quiet(denoiser_case("ernie-image", "ernie-image", "quiet", latent(16, 2, 4), every(0.75), 5)),
]
