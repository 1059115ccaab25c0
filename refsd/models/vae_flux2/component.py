"""The components of FLUX.2's autoencoder."""

from refsd.models import vae_flux2
from refsd.models.vae.component import level_gcd
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, divisor_of, exactly, multiple_of


def _encoder_fits(m: Module) -> dict[str, Fit]:
    C = m.shape("encoder.conv_in.weight")[1]
    side = multiple_of(2 ** m.count("encoder.down"))
    groups = divisor_of(level_gcd(m, "encoder.down"))
    return {"C": exactly(C), "num_groups": groups, "H": side, "W": side}


def _decoder_fits(m: Module) -> dict[str, Fit]:
    groups = divisor_of(level_gcd(m, "decoder.up"))
    return {"C": exactly(m.shape("bn.running_mean")[0]), "num_groups": groups}


COMPONENTS = {
    "flux2-vae-encoder": Component(
        "flux2-vae",
        vae_flux2.encode,
        {"x": Argument("N C H W", VALUE, "picture, -1..1")},
        {"mean": "N 4Z H/16 W/16"},
        {"num_groups": 32, "eps": vae_flux2.EPS, "squares_first": False},
        _encoder_fits,
    ),
    "flux2-vae-decoder": Component(
        "flux2-vae",
        vae_flux2.decode,
        {"z": Argument("N C H W", VALUE, "latent, packed and normalised, as the denoiser has it")},
        {"out": "N K 16H 16W"},
        {"num_groups": 32, "eps": vae_flux2.EPS, "squares_first": False},
        _decoder_fits,
    ),
}
