"""Cases of Qwen-Image, on tiny models of the same architecture."""

from functools import partial

from refsd.golden.recipe import Recipe
from refsd.networks.cases import BATCH, SHARE, denoiser_case, every, latent, mask, quiet, with_params

_case = partial(denoiser_case, "qwen-image", "qwen-image")
_edit_2511 = partial(denoiser_case, "qwen-image-edit-2511", "qwen-image", "edit")
_layered = partial(denoiser_case, "qwen-image-layered", "qwen-image-layered")
_SMALL = latent(16, 4, 6)

CASES = [
    _case("first-step", latent(16, 6, 10), every(1), 7),
    _case("masked", latent(16, 12, 4), SHARE, 37, context_mask=mask(37, 32)),
    _case("edit", _SMALL, every(0.5), 5, reference=latent(16, 6, 10), reference_2=latent(16, 14, 2)),
    with_params(_edit_2511(_SMALL, SHARE, 5, reference=latent(16, 6, 2)), zero_cond_t=True),
    quiet(_case("quiet", latent(16, 4, 8), every(0.75), 5)),
    _layered("layers", Recipe((BATCH, 3, 16, 4, 6)), SHARE, 5, condition=_SMALL),
]
