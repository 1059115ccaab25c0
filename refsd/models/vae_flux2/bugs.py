"""FLUX.2's autoencoder with bugs that a port may have."""

from refsd.models import vae_flux2
from refsd.networks.bugs import replacing

_TO_VAE = vae_flux2.to_vae


def _of_flux2(m, x, eps, squares_first):
    return _TO_VAE(m, x, squares_first=squares_first)


BUGS = replacing(
    vae_flux2,
    ("the latents' eps is FLUX.2's, not the pipeline's own", "to_vae", _of_flux2),
    ("the latents' channels are in FLUX.2's order, not Ideogram 4's", "squares_inside", lambda x: x),
)
