"""Cases of Chroma, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, mask, quiet

CASES = [
    denoiser_case("chroma", "chroma", "whole", latent(16, 6, 4), every(0.5), 7),
    denoiser_case("chroma", "chroma", "masked", latent(16, 4, 10), SHARE, 9,
        context_mask=mask(9, 6, first_whole=True),
    ),
    quiet(denoiser_case("chroma", "chroma", "quiet", latent(16, 4, 8), every(0.75), 5)),
]  # fmt: skip
