"""Cases of Lumina 2, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, mask

CASES = [
    denoiser_case("lumina2", "lumina2", "whole", latent(16, 6, 10), SHARE, 7),
    denoiser_case("lumina2", "lumina2", "masked", latent(16, 8, 4), every(0.25), 13, context_mask=mask(13, 8)),
]  # fmt: skip
