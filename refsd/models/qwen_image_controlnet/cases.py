"""Cases of Qwen-Image with its ControlNet, on tiny models of the same architecture."""

from refsd.networks.cases import SHARE, context, denoiser_case, latent, lone, mask

# The ControlNet sees other words, as in the call without the prompt.
CASES = [
    lone(
        denoiser_case(
            "qwen-image-control",
            "qwen-image",
            "controlled",
            latent(16, 6, 10),
            SHARE,
            7,
            context_mask=mask(7, 3),
            hint=latent(16, 6, 10),
            hint_context=context(9),
            hint_mask=mask(9, 5),
        )
    ),
]
