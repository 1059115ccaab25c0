"""Functions of Lumina 2's model with bugs that a port, or a page shared with Z-Image, may have."""

import numpy as np

from refsd.models import lumina2, zimage
from refsd.networks.bugs import replacing, with_arguments, with_result

BUGS = replacing(
    lumina2,
    (
        "Lumina 2's caption begins at 1, as Z-Image's",
        "caption_ids",
        with_result(lumina2.caption_ids, lambda ids: ids + np.array([1, 0, 0])),
    ),
    (
        "Lumina 2's pictures have the first position",
        "picture_ids",
        with_arguments(lumina2.picture_ids, lengths=np.zeros_like),
    ),
    ("Lumina 2's time is multiplied by 1000, as Z-Image's", "t_embedder", zimage.t_embedder),
    ("Lumina 2's captions are not masked", "own_tokens", lambda lengths, J, L=0: None),
)
