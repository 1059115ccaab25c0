"""Cases of Ernie-Image, on tiny models of the same architecture."""

from functools import partial

from refsd.networks.cases import SHARE, denoiser_case, every, latent, mask, quiet

_case = partial(denoiser_case, "ernie-image", "ernie-image")
CASES = [
    _case("whole", latent(16, 3, 5), SHARE, 7),
    _case("masked", latent(16, 4, 2), every(0.25), 13, context_mask=mask(13, 8)),
    quiet(_case("quiet", latent(16, 2, 4), every(0.75), 5)),
]
