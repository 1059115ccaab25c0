"""Functions of Lumina 2's model with bugs that a port, or a page shared with Z-Image, may have."""

import numpy as np

from refsd.models import lumina2, zimage
from refsd.networks.bugs import replacing

_CAPTION, _PICTURE = lumina2.caption_ids, lumina2.picture_ids


BUGS = replacing(
    lumina2,
    (
        "Lumina 2's caption begins at 1, as Z-Image's",
        "caption_ids",
        lambda N, J: _CAPTION(N, J) + np.array([1, 0, 0]),
    ),
    ("Lumina 2's pictures have the first position", "picture_ids", lambda n, *grid: _PICTURE(0 * n, *grid)),
    ("Lumina 2's time is multiplied by 1000, as Z-Image's", "t_embedder", zimage.t_embedder),
    ("Lumina 2's captions are not masked", "own_tokens", lambda lengths, J, L=0: None),
)
