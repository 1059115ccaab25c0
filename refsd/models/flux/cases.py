"""Cases of FLUX.1, on tiny models of the same architecture."""

from functools import partial

from refsd.networks.cases import SHARE, denoiser_case, every, latent, pooled, quiet

# sd-cli loads no narrower context.
_case = partial(denoiser_case, width=4096, y=pooled(768))
_dev = partial(_case, "flux-dev", "flux")

CASES = [
    _dev("first-step", latent(16, 6, 10), every(1), 7, guidance=every(4)),
    _dev("between", latent(16, 10, 4), SHARE, 1, guidance=every(3.5)),
    _dev("reference", latent(16, 4, 6), every(0.5), 3, guidance=every(2), reference=latent(16, 6, 2)),
    quiet(_dev("quiet", latent(16, 4, 8), every(0.5), 5, guidance=every(3))),
    _case("flux-schnell", "flux", "first-step", latent(16, 2, 12), every(1), 33),
    _case("flux-fill", "flux", "between", latent(96, 8, 4), SHARE, 5, guidance=every(30)),
]
