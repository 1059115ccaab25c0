"""Input images of txt2img: the initial image, its mask, a control image, an image to edit, those read as a prompt.

refsd refuses a size that does not fit, because each engine resizes in its own way. Only pictures to edit
(families/editing.py) and those of an IP-Adapter (image_prompt.py) are resized.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.golden.file_kinds import START, kind
from refsd.golden.input_file import open_input
from refsd.numerics.errors import BadInput

MAX_SIDE = 4096  # pixels

# Flag -> field of ConditioningImages.
IMAGE_FLAGS = {
    "--init-img": "init",
    "--mask": "mask",
    "--control-image": "control",
    "--ref-image": "reference",
    "--redux-image": "redux",
}


class ConditioningImages(NamedTuple):
    """The images that the user gave; None: not given.

    init, control, reference, redux: [1, 3, H, W], 0..1; of init and reference the fourth channel may be alpha
    more_references:          further pictures to edit, after `reference`
    mask:                     [1, 1, H, W], 1 where the picture is to be redrawn
    ip:                       pictures that an IP-Adapter reads as a prompt, as init
    """

    init: np.ndarray | None = None
    mask: np.ndarray | None = None
    control: np.ndarray | None = None
    reference: np.ndarray | None = None
    redux: np.ndarray | None = None
    more_references: tuple[np.ndarray, ...] = ()
    ip: tuple[np.ndarray, ...] = ()

    @property
    def references(self) -> tuple[np.ndarray, ...]:
        """All pictures to edit, in their order."""
        return () if self.reference is None else (self.reference, *self.more_references)

    def without_alpha(self) -> "ConditioningImages":
        """Return the pictures' colours, for a model that takes no alpha."""
        init, reference = (None if image is None else image[:, :3] for image in (self.init, self.reference))
        more = tuple(image[:, :3] for image in self.more_references)
        return self._replace(init=init, reference=reference, more_references=more)

    def given(self) -> list[str]:
        """Return the fields of the images that the user gave."""
        return [field for field in IMAGE_FLAGS.values() if getattr(self, field) is not None]


def read_image(flag: str, path: Path) -> np.ndarray:
    """Read an image -> [1, 3, H, W], 0..1 in steps of 1/255; for --mask [1, 1, H, W], 0 and 1.

    --init-img and --ref-image keep the alpha of a picture that has one: [1, 4, H, W].
    Raises BadInput for a file that is no image, or an image larger than MAX_SIDE.
    """
    from PIL import Image

    colours = flag != "--mask"
    try:
        file = open_input(path, "a picture")
    except BadInput as error:
        raise BadInput(f"{flag} {error}") from None
    found = kind(file.read(START))
    try:
        with file, Image.open(file) as image:
            if max(image.size) > MAX_SIDE:
                raise BadInput(f"{flag} {path}: {image.width}x{image.height} pixels; at most {MAX_SIDE} a side")
            keeps = flag in ("--init-img", "--ref-image") and image.has_transparency_data
            pixels = np.asarray(image.convert(("RGBA" if keeps else "RGB") if colours else "L"))
    except BadInput:
        raise
    except Exception as error:  # Pillow raises another class for each format
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0][:120]
        found = reason if not found or found.endswith(" picture") else found
        raise BadInput(f"{flag} {path}: no picture that can be read: {found}") from None
    values = pixels.astype(np.float64) / 255
    values = values.transpose(2, 0, 1) if colours else np.floor(values + 0.5)[None]
    return values[None]
