"""Refuse what refsd does not know of an engine: models, prompts, clip skip, masks."""

from refsd.conventions.pictures import Convention
from refsd.families import VARIANTS
from refsd.families.family import Variant
from refsd.numerics.errors import BadInput
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.settings import Settings


def check_known(variant: Variant, convention: Convention, settings: Settings, images: ConditioningImages) -> None:
    """Raise BadInput, in one line, for a model or a setting for which the convention has no rules."""
    name, title = convention.name, variant.title
    if variant.layers and not convention.takes_apart:
        raise BadInput(f"--like {name}: refsd knows diffusers' rules of {title} alone: say --like diffusers")
    if convention.draws is None:
        return
    if not variant.known_to(convention):
        known = ", ".join(one.title for one in VARIANTS.values() if one.known_to(convention))
        raise BadInput(f"--like {name}: refsd knows its rules for {known}, not for {title}")
    if settings.prediction == "edm_v":
        raise BadInput(f"--prediction edm_v: refsd does not know the noise levels that {name} has for it")
    if settings.clip_skip is not None and convention.clip_skips and variant.name not in convention.clip_skips:
        known = ", ".join(VARIANTS[one].title for one in convention.clip_skips)
        raise BadInput(f"--clip-skip: for {name} refsd knows it of {known}, not of {title}: leave it out")
    for flag, prompt in (("prompt", settings.prompt), ("negative-prompt", settings.negative_prompt)):
        if convention.edits_prompt(prompt):
            raise BadInput(
                f"--{flag}: {name} edits or combines prompts at [from:to:when], [one|other], AND and <name:...>, "
                "which refsd does not: leave them out"
            )
    if images.mask is not None and convention.latent_mask is None:
        raise BadInput(f"--mask: refsd does not know how {name} inpaints; say another --like, or leave it out")
    given = [name for name in ("control", "reference", "redux", "ip") if getattr(images, name) not in (None, ())]
    if given:
        raise BadInput(f"--like {name}: refsd knows no rules of it for other pictures than --init-img and --mask")
