"""Every family of models that refsd knows, a page each: how files identify it, its prompts, latents and defaults.

A page is a module of this folder that has FAMILIES; it is found by itself. Variants share their family's page.
"""

import importlib
import pkgutil
from collections.abc import Mapping

from refsd.families.family import Family, Identity, LatentScale
from refsd.networks.dimensions import Shape


def _collect() -> dict[str, Family]:
    modules = pkgutil.iter_modules(__path__, f"{__name__}.")
    pages = [getattr(importlib.import_module(module.name), "FAMILIES", ()) for module in modules]
    found = sorted((family for page in pages for family in page), key=lambda family: family.released)
    return {family.name: family for family in found}


# By name, in the order of their release.
FAMILIES = _collect()

VARIANTS = {variant.name: variant for family in FAMILIES.values() for variant in family.variants}

# Of families whose autoencoder is AutoencoderKL.
LATENT_SCALES = {name: family.latents for name, family in FAMILIES.items() if family.latents is not None}


def identify(shapes: Mapping[str, Mapping[str, Shape]]) -> Identity:
    """The model of these components: the denoiser's variant; without a denoiser, "parts".

    shapes: component -> name of a tensor -> shape; at least one component
    """
    for family in FAMILIES.values():
        found = family.identify(shapes[family.network]) if family.network in shapes else None
        if found is not None:
            name, why = found
            return Identity(name, VARIANTS[name].title, why)
    return Identity("parts", f"no denoiser, but {' and '.join(shapes)}", "the names of its tensors")


def latents_of(variant: str) -> LatentScale | None:
    """How a variant's denoiser sees AutoencoderKL's latents; None where it has another autoencoder, or none."""
    of = (family for family in FAMILIES.values() if any(variant == one.name for one in family.variants))
    return next((family.latents for family in of), None)
