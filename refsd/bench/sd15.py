"""What is timed of SD 1.5: a step of its UNet ("unet") and a decode of its autoencoder ("vae")."""

import numpy as np

COMPONENTS = {"unet": "unet", "vae": "vae-decoder"}
LATENT = {"unet": 64, "vae": 32}
ROWS = {"unet": "UNet step, 64x64 latents", "vae": "VAE decode, 256x256 pixels"}


def inputs(what: str) -> dict[str, np.ndarray]:
    """Draw normal float32 inputs, under the names of refsd's components, in the order of diffusers' arguments."""
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((1, 4, LATENT[what], LATENT[what]), np.float32)
    if what == "vae":
        return {"z": latent}
    context = rng.standard_normal((1, 77, 768), np.float32)
    return {"x": latent, "timesteps": np.array([500.0], np.float32), "context": context}
