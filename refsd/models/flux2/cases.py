"""Cases of FLUX.2, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, lone, quiet, with_params

CASES = [
    denoiser_case("flux2-dev", "flux2", "first-step", latent(128, 3, 5), every(1), 7, guidance=every(4)),
    denoiser_case(
        "flux2-dev", "flux2", "reference", latent(128, 2, 3), SHARE, 13,
        guidance=every(2.5), reference=latent(128, 4, 1),
    ),
    denoiser_case("flux2-klein", "flux2", "between", latent(128, 5, 2), every(0.25), 5),
    lone(
        with_params(
            denoiser_case(
                "flux2-klein", "flux2", "cached-references", latent(128, 3, 2), SHARE, 5,
                reference=latent(128, 4, 3),
            ),
            cached_references=True,
        )
    ),
    quiet(denoiser_case("flux2-klein", "flux2", "quiet", latent(128, 2, 3), every(0.5), 7)),
]  # fmt: skip
