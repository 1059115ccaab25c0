"""The size of the pictures that are drawn, and whether the input pictures fit the model and that size."""

from refsd.conventions.pictures import Convention
from refsd.models.controlnet.union import KINDS as CONTROL_TYPES
from refsd.numerics.errors import BadInput
from refsd.pipelines.conditioning_images import IMAGE_FLAGS, ConditioningImages
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.settings import Settings

# Variant.extra_channels -> (images needed, purpose of the weights, how to give the images).
_NEEDED_IMAGES = {
    "inpaint": (("init", "mask"), "are for inpainting: give --init-img and --mask"),
    "fill": (("init", "mask"), "are for filling in: give --init-img and --mask"),
    "edit": (("reference",), "edit a picture: give it with --ref-image"),
    "control": (("control",), "follow a picture of edges or depths: give it with --control-image"),
}


def size_multiple(pipe: Pipeline, convention: Convention) -> int:
    """Return the number of pixels that width and height must be multiples of.

    Source: stable-diffusion.cpp get_diffusion_model_down_factor; diffusers check_inputs of each pipeline.
    """
    P = pipe.autoencoder.pixels
    if pipe.variant.flow is None:
        return P * convention.unet_multiple
    return P * (1 if convention.pads_patches and not pipe.variant.pixel_space else pipe.denoiser.patch)


def drawn_size(
    pipe: Pipeline, convention: Convention, settings: Settings, images: ConditioningImages
) -> tuple[int, int, tuple[str, ...]]:
    """Return width and height as the convention rounds them, and a notice if they differ from the settings."""
    given = images.init, images.mask, images.control, images.reference
    first = next((image for image in given if image is not None), None)
    height, width = (512, 512) if first is None else first.shape[2:]
    editing = pipe.editing(convention)
    if editing is not None and images.references:
        height, width = editing.drawn(images.references[-1].shape[2:])
    width, height = settings.width or width, settings.height or height
    multiple = size_multiple(pipe, convention)
    up = -(-width // multiple) * multiple, -(-height // multiple) * multiple
    down = width // multiple * multiple, height // multiple * multiple
    if (width, height) == up:
        return width, height, ()
    rounds_down = pipe.variant.flow is None if convention.rounds_size_down else pipe.variant.rounds_size_down
    if not convention.rounds_size_up and (not rounds_down or 0 in down):
        raise BadInput(
            f"{width}x{height}: {convention.name} draws {pipe.variant.title} in multiples of {multiple} only: "
            f"{up[0]}x{up[1]} is the next larger size"
        )
    drawn = up if convention.rounds_size_up else down
    way = "up" if convention.rounds_size_up else "down"
    notice = f"{width}x{height} goes {way} to {drawn[0]}x{drawn[1]}: multiples of {multiple}"
    return *drawn, (notice,)


def as_tokens(
    pipe: Pipeline, convention: Convention, images: ConditioningImages, drawn: tuple[int, int]
) -> ConditioningImages:
    """Resize the pictures to edit as the engine does. drawn: height, width"""
    if pipe.variant.references is None or not images.references:
        return images
    token = pipe.autoencoder.pixels * pipe.denoiser.patch
    first, *more = convention.row(pipe.variant.references)(images.references, drawn, token)
    return images._replace(reference=first, more_references=tuple(more))


def check_control_type(pipe: Pipeline, name: str | None) -> None:
    """Raise BadInput for a control picture's kind that the ControlNet does not know, or that it is not told."""
    fit = pipe.denoiser.fits.get("control_type")
    known = CONTROL_TYPES[: fit.n if fit else 0]
    if name is None and known:
        raise BadInput(f"--control-net: it reads several kinds of pictures: say --control-type {', '.join(known)}")
    if name is not None and name not in known:
        what = f"expected {', '.join(known)}" if known else "there is no ControlNet Union; leave it out"
        raise BadInput(f"--control-type {name}: {what}")


def check_images(
    pipe: Pipeline, convention: Convention, images: ConditioningImages, width: int, height: int
) -> None:
    """Raise BadInput for an image that is missing, has no effect on this model, or has the wrong size."""
    kind, arguments = pipe.variant.extra_channels, pipe.denoiser.arguments
    as_large = ["init", "mask", "control", *(["reference"] if kind == "edit" else [])]
    for flag, field in IMAGE_FLAGS.items():
        image = getattr(images, field)
        if image is not None and field in as_large and image.shape[2:] != (height, width):
            raise BadInput(
                f"{flag}: the picture has {image.shape[3]}x{image.shape[2]} pixels and {width}x{height} are drawn: "
                "resize it, or give another -W and -H"
            )
    if images.mask is not None and images.init is None:
        raise BadInput("--mask: it says what of --init-img is drawn anew: give that too")
    hints = "hint" in arguments and pipe.denoiser.fits.get("hint") is None
    if images.control is not None and kind != "control" and not hints:
        raise BadInput(f"--control-image: {pipe.variant.title} has no use for it, or lacks its --control-net")
    if images.reference is not None and kind != "edit":
        multiple = pipe.autoencoder.pixels * pipe.denoiser.patch
        if not pipe.reference_arguments or "reference" in pipe.denoiser.fits:
            raise BadInput(f"--ref-image: {pipe.variant.title} edits no picture; leave it out")
        editing = pipe.editing(convention)
        if editing and pipe.variant.editing_rule and editing.tower not in pipe.image_encoders:
            raise BadInput(
                f"--ref-image: {pipe.variant.title}'s text encoder must see the picture: give its vision "
                "tower with --llm_vision"
            )
        if editing is None and any(side % multiple for one in images.references for side in one.shape[2:]):
            raise BadInput(f"--ref-image: a side of fewer than {multiple} pixels, a token's: give a larger picture")
        most = len(pipe.reference_arguments) if editing is None else editing.most
        if len(images.references) > most:
            raise BadInput(
                f"--ref-image: {len(images.references)} pictures; {pipe.variant.title} takes {most} here"
            )
    elif images.more_references:
        raise BadInput("--ref-image: this model takes one picture")
    if images.redux is not None and "redux" not in pipe.image_encoders:
        raise BadInput(f"--redux-image: {pipe.variant.title} needs --redux and --clip_vision to read it as words")
    if bool(images.ip) != ("ip-adapter" in pipe.image_encoders):
        raise BadInput("--ip-adapter and --ip-image, the picture that it reads, are given together or not at all")
    needed, purpose = _NEEDED_IMAGES.get(kind or "", ((), ""))
    if any(getattr(images, field) is None for field in needed):
        raise BadInput(f"these weights {purpose}")
    if pipe.variant.layers and (images.reference is None or images.init is not None):
        raise BadInput(f"{pipe.variant.title} takes a picture apart: give it with --ref-image, and no --init-img")
