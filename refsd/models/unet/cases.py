"""Cases of the UNet of SD 2, SDXL and SD 1 with control, on tiny models of the same architecture."""

from functools import partial

from refsd.golden.recipe import Recipe
from refsd.networks.cases import (
    BATCH,
    DRAWN,
    PICTURE,
    WIDTH,
    denoiser_case,
    every,
    latent,
    lone,
    pooled,
    with_params,
)

_SIZES = 16 + 6 * 256  # width of a tiny SDXL's y: pooled text, and six embedded sizes

_case = partial(denoiser_case, width=32)
_HINT = latent(3, 64, 128, **PICTURE)
_IMAGE = Recipe((BATCH, 5, WIDTH), offset=0.125)

CASES = [
    _case("sd21", "unet", "first-step", latent(4, 16, 8), every(999), 77, "f16"),
    _case("sd21", "unet", "quiet", latent(4, 8, 16, exponent=-30), every(1), 9, "f16"),
    _case("sdxl", "unet", "first-step", latent(4, 8, 16), every(999), 77, "f16", y=pooled(_SIZES)),
    _case("sdxl", "unet", "between", latent(4, 16, 4), DRAWN, 5, "f16", y=pooled(_SIZES)),
    lone(denoiser_case("sd15-control", "unet", "between", latent(4, 8, 16), DRAWN, 7, hint=_HINT)),
    with_params(
        lone(
            denoiser_case("sd15-ip-adapter", "unet", "image-prompt", latent(4, 8, 24), DRAWN, 7, ip_tokens=_IMAGE)
        ),
        ip_scale=0.625,
    ),
]
