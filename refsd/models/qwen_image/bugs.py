"""Functions of Qwen-Image's model with bugs that its ports have had, or may have."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.kernels.interpolate import resize_bicubic, resize_bilinear
from refsd.kernels.resample import resize_nearest
from refsd.models import qwen_image
from refsd.networks.bugs import Change, replacing, with_arguments

_IDS, _TEXT_IDS = qwen_image.centred_ids, qwen_image.text_ids
_JOINT, _TRANSFORMER = qwen_image.attention, qwen_image.transformer


def _from_the_corner(H, W, index=0):
    ids = _IDS(H, W, index)
    return np.concatenate([ids[:, :1], ids[:, 1:] - ids[:, 1:].min(axis=0)], axis=1)


def _odd_on_the_positive_side(H, W, index=0):
    return _IDS(H, W, index) + np.array([0, H // 2 % 2, W // 2 % 2])


def _spread(J, first):
    """Space J positions over 0..J, both ends included. Source: stable-diffusion.cpp gen_qwen_image_ids."""
    return np.repeat(first + np.linspace(0, J, J)[:, None], 3, axis=1)


def _picture_first(m, img, txt, angle, *rest):
    """Order the angles picture, text, and the streams text, picture."""
    J = txt.shape[1]
    return _JOINT(m, img, txt, np.concatenate([angle[:, J:], angle[:, :J]], axis=1), *rest)


def _pictures(change):
    """Change the rows and columns of each picture's tokens; the text's positions follow from the right ones."""

    def wrong(m, tokens, ids, own, times, context, *rest, **named):
        ids = ids.copy()
        of_pictures = np.arange(len(ids)) >= context.shape[1]
        for k in {*ids[of_pictures, 0]}:
            at = of_pictures & (ids[:, 0] == k)
            ids[at, 1:] = change(ids[at, 1:])
        return _TRANSFORMER(m, tokens, ids, own, times, context, *rest, **named)

    return wrong


_CORNER, _ODD = lambda ids: ids - ids.min(axis=0), lambda ids: ids + (ids.min(axis=0) + ids.max(axis=0) < -1)


def _no_zero_time(*told, **named):
    return _TRANSFORMER(*told[:8], **named)


def _resized(resize):
    """Resize the references to the noisy latent's size; their positions are those of that size, too."""

    def changed(inputs):
        references = {k: np.ascontiguousarray(y) for k, y in inputs.items() if k.startswith("reference")}
        if not references or any(y.ndim != 4 for y in (inputs["x"], *references.values())):
            return None
        return {**inputs, **{k: resize(y, *inputs["x"].shape[2:]) for k, y in references.items()}}

    return Change(inputs=changed)


_RESIZES = {"nearest": resize_nearest, "bilinear": resize_bilinear, "bicubic": resize_bicubic}
BUGS = replacing(
    qwen_image,
    ("Qwen-Image's rows and columns count from the corner", "centred_ids", _from_the_corner),
    ("Qwen-Image's odd row is on the positive side", "centred_ids", _odd_on_the_positive_side),
    ("Qwen-Image's pictures have one position", "centred_ids", with_arguments(_IDS, index=lambda k: 0)),
    ("Qwen-Image's text begins at 0", "text_ids", with_arguments(_TEXT_IDS, first=lambda n: 0)),
    (
        "Qwen-Image's text follows the whole picture, not half",
        "text_ids",
        with_arguments(_TEXT_IDS, first=lambda n: 2 * n),
    ),
    ("Qwen-Image's text is spread over one position more", "text_ids", _spread),
    ("Qwen-Image's text is on one axis", "text_ids", lambda J, first: _TEXT_IDS(J, first) * np.array([1, 0, 0])),
    ("Qwen-Image's positions of text and picture are swapped", "attention", _picture_first),
    (
        "Qwen-Image's pictures count from the corner, the text as if from the centre",
        "transformer",
        _pictures(_CORNER),
    ),
    ("Qwen-Image's odd row is on the positive side, but for the text", "transformer", _pictures(_ODD)),
    ("Qwen-Image's references have the sampler's time", "transformer", _no_zero_time),
) + tuple(
    Mutant(f"Qwen-Image's references are resized to the latent's size ({how})", _resized(resize))
    for how, resize in _RESIZES.items()
)
