"""Cases of FLUX.2, on tiny models of the same architecture."""

from functools import partial
from typing import Any

from refsd.networks.cases import SHARE, denoiser_case, every, latent, lone, quiet, with_params

_dev = partial(denoiser_case, "flux2-dev", "flux2")
_klein = partial(denoiser_case, "flux2-klein", "flux2")
_REFERENCE: dict[str, Any] = {"reference": latent(128, 4, 3)}

CASES = [
    _dev("first-step", latent(128, 3, 5), every(1), 7, guidance=every(4)),
    _dev("reference", latent(128, 2, 3), SHARE, 13, guidance=every(2.5), reference=latent(128, 4, 1)),
    _klein("references", latent(128, 2, 3), SHARE, 5, reference=latent(128, 3, 2), reference_2=latent(128, 3, 2)),
    _klein("between", latent(128, 5, 2), every(0.25), 5),
    lone(
        with_params(_klein("cached-references", latent(128, 3, 2), SHARE, 5, **_REFERENCE), cached_references=True)
    ),
    quiet(_klein("quiet", latent(128, 2, 3), every(0.5), 7)),
]
