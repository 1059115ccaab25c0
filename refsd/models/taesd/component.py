"""The components of the tiny autoencoders."""

from refsd.models import taesd
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import exactly

COMPONENTS = {
    "tae-encoder": Component(
        "tae",
        lambda m, x: taesd.encode(m["encoder"], x),
        {"x": Argument("N C H W", VALUE, "picture, 0..1")},
        {"mean": "N Z H/8 W/8"},
        {},
        lambda m: {"C": exactly(m.shape("encoder.0.weight")[1])},
    ),
    "tae-decoder": Component(
        "tae",
        lambda m, z: taesd.decode(m["decoder"], z),
        {"z": Argument("N Z H W", VALUE, "latent, as the denoiser has it")},
        {"out": "N C 8H 8W"},
        {},
        lambda m: {"Z": exactly(m.shape("decoder.1.weight")[1])},
    ),
}
