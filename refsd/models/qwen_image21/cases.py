"""Cases of Qwen-Image 2.1, on tiny models of the same architecture."""

from functools import partial

from refsd.networks.cases import SHARE, denoiser_case, every, latent, mask, quiet, with_params

_case = partial(denoiser_case, "qwen-image21", "qwen-image21")
CASES = [
    _case("whole", latent(64, 6, 10), SHARE, 7),
    _case("masked", latent(64, 8, 4), every(0.25), 37, context_mask=mask(37, 32)),
    with_params(
        _case(
            "edit", latent(64, 4, 6), SHARE, 31, context_mask=mask(31, 4),
            reference=latent(64, 6, 8), reference_2=latent(64, 2, 6),
        ),
        places=[3, 17],
    ),
    quiet(_case("quiet", latent(64, 4, 8), every(0.75), 5)),
]  # fmt: skip
