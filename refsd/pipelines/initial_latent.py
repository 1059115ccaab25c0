"""Prepare the start of sampling: noise, latents of the input images, and the network's extra input channels."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from refsd.conventions.pictures import Convention
from refsd.pipelines.autoencoders import Autoencoder, Draw
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.plan import Plan
from refsd.samplers.noise import RNGS, Noise, OfBatch


class ExtraChannels(NamedTuple):
    """Channels after x in the network's input, for the calls with and without the prompt: [1, C, h, w] each."""

    cond: np.ndarray
    uncond: np.ndarray


class InitialLatent(NamedTuple):
    """All that sampling one picture starts from.

    noise:  plan.latent_shape, standard normals
    rng:    generator of the noise, which also draws the noise between steps
    latent: latent of the initial image; None: there is none
    mask:   [1, 1, h, w], 1 where the picture is to be redrawn; None: everywhere
    extra:  extra input channels; None: the network takes x alone
    constants: the network's other images, by argument
    """

    noise: np.ndarray
    rng: Noise
    latent: np.ndarray | None = None
    mask: np.ndarray | None = None
    extra: ExtraChannels | None = None
    constants: Mapping[str, np.ndarray] = {}

    def first_x(self, plan: Plan, dtype: np.dtype) -> np.ndarray:
        """Return the first latents.

        x = latent + first_noise noise;  for a rectified flow x = (1 - sigma_0) latent + sigma_0 noise
        """
        noise = self.noise.astype(dtype) * plan.first_noise
        if self.latent is None:
            return noise
        latent = self.latent.astype(dtype)
        return (latent if plan.prediction else latent * (1 - plan.first_noise)) + noise


def initial_latent(pipe: Pipeline, plan: Plan, seed: int) -> InitialLatent:
    """Draw the noise and encode the images of one picture. seed: one of plan.seeds"""
    convention, images, vae = plan.convention, plan.images, pipe.autoencoder
    kind = pipe.variant.extra_channels
    rng = generator(plan, plan.rng, seed)
    posterior = rng if convention.one_stream else RNGS[plan.rng](plan.seeds[0])
    latent = extra = mask = None
    if plan.from_image and images.init is not None:
        latent = vae.encode(signed(images.init), posterior.randn if convention.draws_init else None)
    if kind in _BEFORE_NOISE:
        extra = EXTRA_CHANNELS[kind](images, vae, convention, posterior.randn)
    constants = {}
    if images.control is not None and kind != "control":
        drawn = pipe.variant.draws_hint and convention.draws_init
        constants["hint"] = _hint(pipe, images.control, posterior.randn if drawn else None)
    noise = rng.randn(plan.latent_shape)
    if kind and extra is None:
        extra = EXTRA_CHANNELS[kind](images, vae, convention, posterior.randn)
    if images.reference is not None and kind != "edit":
        editing = pipe.editing(convention)
        draw = posterior.randn if convention.draws_reference and editing is None else None
        for name, picture in zip(pipe.reference_arguments, images.references, strict=False):
            whole = picture if editing is None else editing.latent(picture, (plan.height, plan.width))
            constants[name] = vae.encode(signed(whole), draw)
    if images.mask is not None and (convention.keeps_unmasked or not kind):
        assert convention.latent_mask is not None
        mask = convention.latent_mask(images.mask, vae.pixels)
        mask = widened(mask) if kind in ("inpaint", "fill") else mask
    return InitialLatent(noise, rng, latent, mask, extra, constants)


def generator(plan: Plan, name: str, seed: int, more: int = 0) -> Noise:
    """Return the random generator of one picture: its own, or its share of the batch's.

    name: key of RNGS; more: is added to the seed that it starts from
    """
    if not plan.convention.whole_batch:
        return RNGS[name](seed + more)
    return OfBatch(RNGS[name](plan.seeds[0] + more), len(plan.seeds), plan.seeds.index(seed))


def _hint(pipe: Pipeline, picture: np.ndarray, draw: Draw | None) -> np.ndarray:
    """Return a control picture as the ControlNet reads it: pixels, or its latent and zeros up to G channels.

    Source: diffusers ZImageControlNetPipeline.__call__, QwenImageControlNetPipeline.__call__.
    """
    if "G" not in pipe.denoiser.fits:
        return picture
    latent = pipe.autoencoder.encode(signed(picture), draw)
    more = pipe.denoiser.fits["G"].n - latent.shape[1]
    return np.pad(latent, ((0, 0), (0, more), (0, 0), (0, 0)))


def signed(image: np.ndarray) -> np.ndarray:
    """Map 0..1 to -1..1."""
    return image * 2 - 1


def widened(mask: np.ndarray) -> np.ndarray:
    """Widen a mask by the maximum over 3x3 squares.

    Source: stable-diffusion.cpp, max_pool_2d of an inpainting model's mask.
    """
    h, w = mask.shape[2:]
    around = np.pad(mask, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.max([around[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)], axis=0)


def _masked(images: ConditioningImages) -> tuple[np.ndarray, np.ndarray]:
    """Return the initial image, -1..1, grey under the mask; and the mask."""
    assert images.init is not None and images.mask is not None
    return signed(images.init) * (1 - images.mask), images.mask


def _inpaint(images: ConditioningImages, vae: Autoencoder, convention: Convention, draw: Draw | None):
    """Concatenate the mask and the masked image's latent. Source: runwayml/stable-diffusion inpaint_st.py."""
    image, mask = _masked(images)
    latent = vae.encode(image, draw)
    assert convention.latent_mask is not None
    mask = convention.latent_mask(mask, vae.pixels).astype(latent.dtype)
    uncond = latent if convention.uncond_sees_image else np.zeros_like(latent)
    return ExtraChannels(*(np.concatenate([mask, z], axis=1) for z in (latent, uncond)))


def _fill(images: ConditioningImages, vae: Autoencoder, convention: Convention, draw: Draw | None):
    """Concatenate the masked image's latent and the mask, whose pixels per latent become channels.

    Source: black-forest-labs/flux sampling.py, prepare_fill; diffusers FluxFillPipeline.prepare_mask_latents.
    """
    image, mask = _masked(images)
    latent = vae.encode(image, draw)
    _, _, h, w = latent.shape
    P = vae.pixels
    mask = mask.reshape(1, h, P, w, P).transpose(0, 2, 4, 1, 3).reshape(1, P * P, h, w).astype(latent.dtype)
    uncond = latent if convention.uncond_sees_image else np.zeros_like(latent)
    return ExtraChannels(*(np.concatenate([z, mask], axis=1) for z in (latent, uncond)))


def _edit(images: ConditioningImages, vae: Autoencoder, convention: Convention, draw: Draw | None):
    """Return the posterior mean of the image to edit, not scaled; zeros for the call without it, in every engine.

    Source: timothybrooks/instruct-pix2pix edit_cli.py; diffusers prepare_image_latents.
    """
    assert images.reference is not None
    latent = vae.encode(signed(images.reference), scaled=False)
    return ExtraChannels(latent, np.zeros_like(latent))


def _control(images: ConditioningImages, vae: Autoencoder, convention: Convention, draw: Draw | None):
    """Return the latent of the control image. Source: black-forest-labs/flux sampling.py, prepare_control."""
    assert images.control is not None
    latent = vae.encode(signed(images.control), draw)
    return ExtraChannels(latent, latent if convention.uncond_sees_image else np.zeros_like(latent))


# Keys of EXTRA_CHANNELS whose posterior diffusers samples before it draws the noise.
_BEFORE_NOISE = ("control",)
# Variant.extra_channels -> function that makes the channels.
EXTRA_CHANNELS: dict[str, Callable[[ConditioningImages, Autoencoder, Convention, Draw | None], ExtraChannels]] = {
    "inpaint": _inpaint,
    "fill": _fill,
    "edit": _edit,
    "control": _control,
}
