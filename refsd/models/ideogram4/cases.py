"""Cases of Ideogram 4, on tiny models of the same architecture."""

from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, SHARE, denoiser_case, every, latent, lone, mask, quiet

# The last frequencies are slow: it takes many columns to see which axis they follow.
_WIDE = latent(16, 2, 30)
_SMALL = latent(16, 3, 2)
_NO_WORDS = Recipe((BATCH, 1), "i32", data="constant")

# diffusers' angles are float32, off by 0.004 at places above 65536: it conforms in float64 only.
CASES = [
    lone(denoiser_case("ideogram4", "ideogram4", "whole", latent(16, 3, 5), SHARE, 7)),
    lone(denoiser_case("ideogram4", "ideogram4", "masked", _WIDE, every(0.03125), 13, context_mask=mask(13, 8))),
    lone(denoiser_case("ideogram4-guided", "ideogram4", "without-words", _SMALL, SHARE, 1, context_mask=_NO_WORDS)),
    lone(quiet(denoiser_case("ideogram4", "ideogram4", "quiet", latent(16, 2, 4), every(0.75), 5))),
]  # fmt: skip
