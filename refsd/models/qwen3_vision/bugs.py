"""Functions of Qwen3-VL's vision tower with bugs that a port, or a page shared with Qwen2.5-VL's, may have."""

import re

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import qwen3_vision
from refsd.module import Module
from refsd.networks.bugs import Change, Inputs, replacing, with_result

_POSITIONS = qwen3_vision.positions
# For the positions and for the rotary angles.
_PLACES_SWAPPED = with_result(qwen3_vision.places, lambda at: at[..., ::-1])


def _from_centres(place, n, side):
    """Interpolate as with align_corners off: the centres of the outer patches stand inside the grid."""
    exact = np.clip((place + 0.5) * side / n - 0.5, 0, side - 1)
    first = np.floor(exact).astype(np.int64)
    return first, exact - first


def _nearest(place, n, side):
    first = np.rint(place * (side - 1) / (n - 1)).astype(np.int64)
    return first, np.zeros(len(first))


def _cut_off(place, n, side):
    """Take the first positions of the grid."""
    return np.minimum(place, side - 1), np.zeros(len(place))


def _positions_swapped(m: Module, at, high, wide):
    return _POSITIONS(m, at[:, ::-1], wide, high)


def _positions_row_by_row(m: Module, at, high, wide):
    """Add the positions in the picture's order, not in the order of the tokens' patches."""
    return _POSITIONS(m, np.indices((high, wide)).reshape(2, -1).T, high, wide)


def _normalised_together(m: Module, h):
    """Put the patches together before the last merger's norm, as before DeepStack's."""
    h = qwen3_vision.fours(h)
    weight, bias = (np.tile(m.weight(f"norm.{part}"), 4) for part in ("weight", "bias"))
    centred = h - h.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + qwen3_vision.EPS)
    return qwen3_vision.merged(m, m.store(normal * weight + bias))


def _normalised_apart(m: Module, h):
    """Normalise each patch before DeepStack's mergers, as before the last one."""
    centred = h - h.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + qwen3_vision.EPS)
    fours = qwen3_vision.fours(normal) * m.weight("norm.weight") + m.weight("norm.bias")
    return qwen3_vision.merged(m, m.store(fours))


def _merged_with_tanh(m: Module, h):
    return m.linear("linear_fc2", m.gelu_tanh(m.linear("linear_fc1", h)))


def _exact_gelu(m: Module, h):
    return m.linear("linear_fc2", m.gelu(m.linear("linear_fc1", h)))


def _first_merger_for_all(name: str) -> str | None:
    return re.sub(r"(deepstack_merger_list)\.[0-9]+\.", r"\1.0.", name)


def _without_the_last(outputs: Inputs) -> Inputs | None:
    if "deepstack" not in outputs:
        return None
    features = outputs["deepstack"].copy()
    features[:, -1] = 0
    return {**outputs, "deepstack": features}


def _backwards(outputs: Inputs) -> Inputs | None:
    if "deepstack" not in outputs:
        return None
    return {**outputs, "deepstack": np.ascontiguousarray(outputs["deepstack"][:, ::-1])}


# Of whom -> mean and deviation of red, green and blue pixels of 0..1.
_PIXELS = {
    "1/2 and 1/2": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP's statistics": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "ImageNet's statistics": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "nothing, left in 0..1": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


def _normalised(right, wrong):
    """Normalise pictures [N, 3, H, W] by other means and deviations."""

    def changed(inputs: Inputs) -> Inputs | None:
        x = inputs.get("x")
        if x is None or x.ndim != 4 or x.shape[1] != 3:
            return None
        mean, deviation, centre, spread = (np.reshape(t, (3, 1, 1)) for t in (*right, *wrong))
        return {**inputs, "x": ((x * deviation + mean - centre) / spread).astype(x.dtype)}

    return changed


BUGS = (
    *replacing(
        qwen3_vision,
        ("Qwen3-VL's positions are interpolated between the centres of patches", "between", _from_centres),
        ("Qwen3-VL's positions are the nearest", "between", _nearest),
        ("Qwen3-VL's positions are cut off, not interpolated", "between", _cut_off),
        ("Qwen3-VL's positions have rows and columns swapped", "positions", _positions_swapped),
        ("Qwen3-VL's positions run row by row over the patches", "positions", _positions_row_by_row),
        ("Qwen3-VL's positions are left out", "positions", with_result(_POSITIONS, np.zeros_like)),
        ("Qwen3-VL's rows and columns of patches are swapped", "places", _PLACES_SWAPPED),
        ("Qwen3-VL's last merger normalises four patches as one", "merger", _normalised_together),
        ("Qwen3-VL's DeepStack normalises each patch by itself", "deepstack_merger", _normalised_apart),
        ("Qwen3-VL's mergers have GELU's tanh form", "merged", _merged_with_tanh),
        ("Qwen3-VL's vision MLP has the exact GELU", "mlp", _exact_gelu),
        ("Qwen3-VL's DeepStack takes the outputs one block early", "taken", lambda i, blocks: i + 1 in blocks),
        ("Qwen3-VL's DeepStack takes the outputs one block late", "taken", lambda i, blocks: i - 1 in blocks),
    ),
    *(
        Mutant(f"pixels are normalised by {to}, not by {of}", Change(inputs=_normalised(_PIXELS[of], own)))
        for of in ("1/2 and 1/2", "CLIP's statistics")
        for to, own in _PIXELS.items()
        if to != of
    ),
    Mutant("Qwen3-VL's DeepStack uses its first merger for all", Change(rename=_first_merger_for_all)),
    Mutant("Qwen3-VL's DeepStack lacks its last merger", Change(outputs=_without_the_last)),
    Mutant("Qwen3-VL's DeepStack is in reverse order", Change(outputs=_backwards)),
)
