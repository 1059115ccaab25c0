"""Cases of Chroma-Radiance, on tiny models of the same architecture."""

from functools import partial

from refsd.networks.cases import SHARE, denoiser_case, every, latent, lone, mask, quiet

_case = partial(denoiser_case, "chroma-radiance", "chroma-radiance")
CASES = [
    # No released torch library has this model.
    lone(_case("whole", latent(3, 16, 40), every(0.5), 7)),
    lone(quiet(_case("quiet", latent(3, 24, 16), every(0.5), 7))),
    lone(_case("masked", latent(3, 24, 16), SHARE, 9, context_mask=mask(9, 6))),
]
