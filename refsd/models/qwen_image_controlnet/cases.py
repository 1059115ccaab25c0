"""Cases of Qwen-Image with its ControlNet, on tiny models of the same architecture."""

from typing import Any

from refsd.networks.cases import SHARE, context, denoiser_case, latent, lone, mask

_PICTURE = latent(16, 6, 10)
# The ControlNet sees other words, as in the call without the prompt.
_HINT: dict[str, Any] = {
    "context_mask": mask(7, 3),
    "hint": _PICTURE,
    "hint_context": context(9),
    "hint_mask": mask(9, 5),
}

CASES = [lone(denoiser_case("qwen-image-control", "qwen-image", "controlled", _PICTURE, SHARE, 7, **_HINT))]
