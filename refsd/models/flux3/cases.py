"""Cases of FLUX.3, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, denoiser_case, every, latent, quiet

CASES = [
    denoiser_case("flux3", "flux3", "first-step", latent(128, 3, 5), every(1), 7),
    denoiser_case(
        "flux3", "flux3", "references", latent(128, 4, 2), SHARE, 13,
        reference=latent(128, 2, 3), reference_2=latent(128, 3, 1),
    ),
    denoiser_case(
        "flux3-distilled", "flux3", "jump", latent(128, 2, 5), every(0.5), 5,
        target_timesteps=every(0.25), reference=latent(128, 3, 2),
    ),
    denoiser_case("flux3-distilled", "flux3", "last-step", latent(128, 3, 2), SHARE, 7, target_timesteps=every(0)),
    quiet(denoiser_case("flux3", "flux3", "quiet", latent(128, 2, 3), every(0.5), 7)),
]  # fmt: skip
