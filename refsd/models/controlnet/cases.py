"""Cases of ControlNet, on tiny models of the same architecture."""

from refsd.networks.cases import DRAWN, PICTURE, denoiser_case, latent, with_params

_X, _HINT = latent(4, 8, 16), latent(3, 64, 128, **PICTURE)

CASES = [
    denoiser_case("controlnet", "controlnet", "between", _X, DRAWN, 7, hint=_HINT),
    with_params(denoiser_case("controlnet-union", "controlnet", "kind", _X, DRAWN, 7, hint=_HINT), control_type=3),
]
