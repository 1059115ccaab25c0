"""Cases of the UNet of SD 2, SDXL and SD 1 with control, on tiny models of the same architecture."""

from functools import partial

from refsd.golden.recipe import Recipe
from refsd.networks.cases import (
    BATCH,
    DRAWN,
    PICTURE,
    WIDTH,
    context,
    denoiser_case,
    every,
    latent,
    lone,
    pooled,
    tiny_case,
)

_SIZES = 16 + 6 * 256  # width of a tiny SDXL's y: pooled text, and six embedded sizes

_case = partial(denoiser_case, width=32)

CASES = [
    _case("sd21", "unet", "first-step", latent(4, 16, 8), every(999), 77, "f16"),
    _case("sd21", "unet", "quiet", latent(4, 8, 16, exponent=-30), every(1), 9, "f16"),
    _case("sdxl", "unet", "first-step", latent(4, 8, 16), every(999), 77, "f16", y=pooled(_SIZES)),
    _case("sdxl", "unet", "between", latent(4, 16, 4), DRAWN, 5, "f16", y=pooled(_SIZES)),
    lone(
        tiny_case(
            "sd15-control",
            "unet",
            "between",
            {
                "x": latent(4, 8, 16),
                "timesteps": DRAWN,
                "context": context(7),
                "hint": latent(3, 64, 128, **PICTURE),
            },
        )
    ),
    lone(
        tiny_case(
            "sd15-ip-adapter",
            "unet",
            "image-prompt",
            {
                "x": latent(4, 8, 24),
                "timesteps": DRAWN,
                "context": context(7),
                "ip_tokens": Recipe((BATCH, 5, WIDTH), offset=0.125),
            },
            ip_scale=0.625,
        )
    ),
]
