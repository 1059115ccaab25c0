"""Cases of Anima's transformer, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, quiet

CASES = [
    denoiser_case("anima", "anima", "whole", latent(16, 6, 10), SHARE, 7),
    quiet(denoiser_case("anima", "anima", "quiet", latent(16, 4, 8), every(0.75), 5)),
]
