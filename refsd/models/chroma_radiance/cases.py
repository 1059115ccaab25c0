"""Cases of Chroma-Radiance, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, lone, mask, quiet

CASES = [
    # No released torch library has this model.
    lone(denoiser_case("chroma-radiance", "chroma-radiance", "whole", latent(3, 16, 40), every(0.5), 7)),
    lone(quiet(denoiser_case("chroma-radiance", "chroma-radiance", "quiet", latent(3, 24, 16), every(0.5), 7))),
    lone(
        denoiser_case(
            "chroma-radiance", "chroma-radiance", "masked", latent(3, 24, 16), SHARE, 9, context_mask=mask(9, 6)
        )
    ),
]
