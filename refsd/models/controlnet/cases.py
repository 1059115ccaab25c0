"""Cases of ControlNet, on tiny models of the same architecture."""

from refsd.networks.cases import DRAWN, PICTURE, denoiser_case, latent, with_params

CASES = [
    denoiser_case(
        "controlnet", "controlnet", "between", latent(4, 8, 16), DRAWN, 7, hint=latent(3, 64, 128, **PICTURE)
    ),
    with_params(
        denoiser_case(
            "controlnet-union", "controlnet", "kind", latent(4, 8, 16), DRAWN, 7, hint=latent(3, 64, 128, **PICTURE)
        ),
        control_type=3,
    ),
]
