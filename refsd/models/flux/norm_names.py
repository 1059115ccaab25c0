"""RMS norms of FLUX.1 and its descendants: `.scale` in the original's files, `.weight` in files ComfyUI saved."""

import re
from collections.abc import Iterable

from refsd.networks.keymap import Keymap, prefix_rows, same_names
from refsd.networks.network import Layout

_NORM = re.compile(
    r"(.*\.(?:query|key)_norm|distilled_guidance_layer\.norms\.\d+|nerf_(?:blocks\.\d+|final_layer(?:_conv)?)\.norm)"
    r"\.weight"
)


def norms_keymap(names: Iterable[str]) -> Keymap:
    """Map the original's names to a file's, which differ only in norms named `.weight`."""
    stems = [match[1] for match in map(_NORM.fullmatch, names) if match]
    return Keymap(prefix_rows((f"{stem}.scale", f"{stem}.weight") for stem in stems), rest_same=True)


# The original's names, except for norms named `.weight`.
ORIGINAL = Layout("original", norms_keymap, lambda size: same_names(()))
