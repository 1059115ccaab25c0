"""Where diffusers keeps the UNets of SD 2.x and SDXL. See keymaps.py."""

from collections.abc import Iterable

from refsd.weights import keymaps
from refsd.weights.keymaps import SAME, Keymap, Row

# Ours, theirs.
LABEL = (
    ("label_emb.0.0", "add_embedding.linear_1"),
    ("label_emb.0.2", "add_embedding.linear_2"),
)


def unet(levels: int = 3, res_blocks: int = 2, attention: Iterable[int] = (1, 2)) -> Keymap:
    """SDXL's UNet <-> diffusers' UNet2DConditionModel. The refiner has 4 levels; SD 2's is keymaps.unet()."""
    label = Keymap(Row(ours, (theirs,), SAME) for ours, theirs in LABEL)
    return Either(label, keymaps.unet(levels, res_blocks, attention))


class Either(Keymap):
    """The first of two that knows a name."""

    def __init__(self, first: Keymap, second: Keymap):
        super().__init__(())
        self._pair = first, second

    def theirs(self, name: str):
        return self._pair[0].theirs(name) or self._pair[1].theirs(name)

    def ours(self, name: str):
        return self._pair[0].ours(name) or self._pair[1].ours(name)
