"""Known bugs of CLIP's pooled text."""

import numpy as np

from refsd.models import clip
from refsd.networks.bugs import replacing

_LAYER = clip.layer


def _skips_the_last(m, x, *more):
    stem, _, index = m.prefix.rstrip(".").rpartition(".")
    last = f"{stem}.{int(index) + 1}.layer_norm1.weight" not in m.weights
    return x if last else _LAYER(m, x, *more)


_END = "end_of_prompt"
BUGS = replacing(
    clip,
    ("the pooled text is at the largest id", _END, lambda ids, eos: ids.argmax(axis=1)),
    ("the pooled text is at the last token", _END, lambda ids, eos: np.full(len(ids), ids.shape[1] - 1)),
    ("the pooled text is at the first token", _END, lambda ids, eos: np.zeros(len(ids), int)),
    ("the pooled text is one token early", _END, lambda ids, eos: np.argmax(ids == eos, axis=1) - 1),
    ("the last layer is left out (of the pooled text)", "layer", _skips_the_last),
)
