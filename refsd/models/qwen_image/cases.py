"""Cases of Qwen-Image, on tiny models of the same architecture."""

from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, SHARE, denoiser_case, every, latent, mask, quiet, with_params

CASES = [
    denoiser_case("qwen-image", "qwen-image", "first-step", latent(16, 6, 10), every(1), 7),
    denoiser_case("qwen-image", "qwen-image", "masked", latent(16, 12, 4), SHARE, 37, context_mask=mask(37, 32)),
    denoiser_case(
        "qwen-image",
        "qwen-image",
        "edit",
        latent(16, 4, 6),
        every(0.5),
        5,
        reference=latent(16, 6, 10),
        reference_2=latent(16, 14, 2),
    ),
    with_params(
        denoiser_case(
            "qwen-image-edit-2511", "qwen-image", "edit", latent(16, 4, 6), SHARE, 5, reference=latent(16, 6, 2)
        ),
        zero_cond_t=True,
    ),
    quiet(denoiser_case("qwen-image", "qwen-image", "quiet", latent(16, 4, 8), every(0.75), 5)),
    denoiser_case(
        "qwen-image-layered",
        "qwen-image-layered",
        "layers",
        Recipe((BATCH, 3, 16, 4, 6)),
        SHARE,
        5,
        condition=latent(16, 4, 6),
    ),
]
