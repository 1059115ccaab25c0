"""Cases of Qwen-Image 2.1, on tiny models of the same architecture."""

from functools import partial

from refsd.networks.cases import SHARE, denoiser_case, every, latent, mask, quiet

_case = partial(denoiser_case, "qwen-image21", "qwen-image21")
CASES = [
    _case("whole", latent(64, 6, 10), SHARE, 7),
    _case("masked", latent(64, 8, 4), every(0.25), 37, context_mask=mask(37, 32)),
    quiet(_case("quiet", latent(64, 4, 8), every(0.75), 5)),
]
