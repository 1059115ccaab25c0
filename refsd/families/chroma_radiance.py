"""Chroma-Radiance: Chroma on pixels, without an autoencoder."""

from refsd.families.chroma import CHROMA, NARROW, TINY
from refsd.families.family import Family
from refsd.models.chroma_radiance.network import RADIANCE as RADIANCE_SIZE
from refsd.models.chroma_radiance.network import RADIANCE_X0_32, RadianceSize
from refsd.models.t5.network import T5_XXL
from refsd.networks.recipe import alone

RADIANCE = CHROMA._replace(
    name="chroma-radiance", title="Chroma-Radiance", pixel_space=True, rounds_size_down=False, other_engines=()
)
_TINY = RadianceSize(TINY, patch=8, field=16, depth=2)
_SIZES = {
    "chroma-radiance": (RADIANCE_SIZE, _TINY),
    "chroma-radiance-narrow": (RadianceSize(NARROW), RadianceSize(NARROW)),
    "chroma-radiance-x0-narrow": (RADIANCE_X0_32._replace(chroma=NARROW), RADIANCE_X0_32._replace(chroma=NARROW)),
}
FAMILIES = (
    Family(
        "chroma-radiance",
        "2025-09",
        "chroma-radiance",
        lambda shapes: ("chroma-radiance", "its pixels are painted by fields (nerf_blocks)"),
        (RADIANCE,),
        sizes={"Chroma-Radiance": {"chroma-radiance": RADIANCE_SIZE, "t5": T5_XXL}},
        recipes={name: alone("chroma-radiance", full, tiny, "flux") for name, (full, tiny) in _SIZES.items()},
    ),
)
