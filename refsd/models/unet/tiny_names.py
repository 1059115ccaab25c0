"""Block numbers of tiny SD and SDXS in single files, which skip numbers because a level has fewer blocks than SD's.

Source: diffusers, scripts/convert_diffusers_to_original_stable_diffusion.py; stable-diffusion.cpp.
"""

from collections.abc import Collection, Iterable

from refsd.networks.dimensions import count
from refsd.networks.keymap import Keymap, prefix_rows

_STEP = 3  # numbers per level
_SAME_ENDS = ("time_embed", "label_emb", "input_blocks.0", "middle_block", "out")


def is_tiny(names: Collection[str]) -> bool:
    """True if the block numbers have the gaps of a UNet with one res block per level."""
    places = {name.split(".")[1] for name in names if name.startswith("input_blocks.")}
    return "2" not in places and {"1", "3", "4"} <= places


def tiny_unet_of_names(names: Collection[str]) -> Keymap:
    levels = count(names, "input_blocks.", 8) // _STEP + 1
    at = [f"input_blocks.{_STEP * level + 1}.1." for level in range(levels)]
    return tiny_unet_keymap(
        levels, [level for level, start in enumerate(at) if any(n.startswith(start) for n in names)]
    )


def tiny_unet_keymap(levels: int = 3, attention: Iterable[int] = (0, 1, 2)) -> Keymap:
    """Map names with consecutive block numbers to and from names with gaps. attention: levels with transformers"""
    attention = set(attention)
    pairs = [(name, name) for name in _SAME_ENDS]
    for level in range(levels):
        pairs.append((f"input_blocks.{2 * level + 1}", f"input_blocks.{_STEP * level + 1}"))
        pairs.append((f"input_blocks.{2 * level + 2}", f"input_blocks.{_STEP * level + 3}"))
        for i in (0, 1):
            ours, theirs = f"output_blocks.{2 * level + i}", f"output_blocks.{_STEP * level + i}"
            pairs += [(f"{ours}.{layer}", f"{theirs}.{layer}") for layer in (0, 1)]
        layer = 1 + (levels - 1 - level in attention)
        # As the conversion script numbers them: in SD 1 the first level of the decoder has no transformers.
        theirs = f"output_blocks.{_STEP * level + 2}.{1 if level == 0 else 2}"
        pairs.append((f"output_blocks.{2 * level + 1}.{layer}", theirs))
    pairs += [(f"output_blocks.{i}.1", f"up_blocks.0.attentions.{i}") for i in (0, 1)]
    return Keymap(prefix_rows(pairs))
