"""Cases of Z-Image with its ControlNet, on tiny models of the same architecture."""

from typing import Any

from refsd.networks.cases import SHARE, denoiser_case, latent, lone, mask

_HINT: dict[str, Any] = {"context_mask": mask(37, 30), "hint": latent(33, 6, 10)}

CASES = [lone(denoiser_case("zimage-control", "zimage", "controlled", latent(16, 6, 10), SHARE, 37, **_HINT))]
