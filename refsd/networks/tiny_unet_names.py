"""The numbers of tiny SD's and SDXS's blocks in single files, which leave gaps where a level has fewer blocks.

Source: diffusers, scripts/convert_diffusers_to_original_stable_diffusion.py; stable-diffusion.cpp.
"""

from collections.abc import Collection, Iterable

from refsd.networks.dimensions import count
from refsd.networks.keymap import SAME, Keymap, Row

_STEP = 3  # their numbers a level
_SAME_ENDS = ("time_embed", "label_emb", "input_blocks.0", "middle_block", "out")


def is_tiny(names: Collection[str]) -> bool:
    """Whether the numbers have the gap that one res block a level leaves."""
    places = {name.split(".")[1] for name in names if name.startswith("input_blocks.")}
    return "2" not in places and {"1", "3", "4"} <= places


def tiny_unet_of_names(names: Collection[str]) -> Keymap:
    levels = count(names, "input_blocks.", 8) // _STEP + 1
    at = [f"input_blocks.{_STEP * level + 1}.1." for level in range(levels)]
    return tiny_unet_keymap(
        levels, [level for level, start in enumerate(at) if any(n.startswith(start) for n in names)]
    )


def tiny_unet_keymap(levels: int = 3, attention: Iterable[int] = (0, 1, 2)) -> Keymap:
    """Numbers without gaps <-> with. attention: the levels that have transformers"""
    attention = set(attention)
    pairs = [(name, name) for name in _SAME_ENDS]
    for level in range(levels):
        pairs.append((f"input_blocks.{2 * level + 1}", f"input_blocks.{_STEP * level + 1}"))
        pairs.append((f"input_blocks.{2 * level + 2}", f"input_blocks.{_STEP * level + 3}"))
        for i in (0, 1):
            ours, theirs = f"output_blocks.{2 * level + i}", f"output_blocks.{_STEP * level + i}"
            pairs += [(f"{ours}.{layer}", f"{theirs}.{layer}") for layer in (0, 1)]
        layer = 1 + (levels - 1 - level in attention)
        # The script's: the first level out has no transformers in Stable Diffusion 1.
        theirs = f"output_blocks.{_STEP * level + 2}.{1 if level == 0 else 2}"
        pairs.append((f"output_blocks.{2 * level + 1}.{layer}", theirs))
    pairs += [(f"output_blocks.{i}.1", f"up_blocks.0.attentions.{i}") for i in (0, 1)]
    return Keymap(Row(ours, (theirs,), SAME) for ours, theirs in pairs)
