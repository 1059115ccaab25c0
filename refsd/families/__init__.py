"""Table of all model families. One module describes each: how files identify it, prompts, latents, defaults.

Every module of this folder that defines FAMILIES is collected automatically. A family's variants share its module.
"""

from collections.abc import Mapping

from refsd.families.family import Family, Identity
from refsd.golden.pages import by_name
from refsd.models.vae.latents import LATENT_SCALES, LatentScale
from refsd.networks.dimensions import Shape

# By name, in order of release.
FAMILIES: dict[str, Family] = dict(sorted(by_name(__name__, "FAMILIES").items(), key=lambda item: item[1].released))

VARIANTS = {variant.name: variant for family in FAMILIES.values() for variant in family.variants}


def identify(shapes: Mapping[str, Mapping[str, Shape]]) -> Identity:
    """Identify the model by its denoiser; without a denoiser it is called "parts".

    shapes: component -> tensor name -> shape; at least one component
    """
    for family in FAMILIES.values():
        found = family.identify(shapes[family.network]) if family.network in shapes else None
        if found is not None:
            name, why = found
            return Identity(name, VARIANTS[name].title, why)
    return Identity("parts", f"no denoiser, but {' and '.join(shapes)}", "the names of its tensors")


def latents_of(variant: str) -> LatentScale | None:
    """Return the scale of AutoencoderKL's latents for a variant; None if it has another autoencoder, or none."""
    of = next((family for family in FAMILIES.values() if any(variant == one.name for one in family.variants)), None)
    return None if of is None else LATENT_SCALES.get(of.name)
