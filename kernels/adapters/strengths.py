"""How a strength s enters DoRA and OFT, by the rule of each trainer and engine.

All rules agree at s = 1. Adapters that are differences (LoRA, LoHa, LoKr, GLoRA, IA3, full) are multiplied by s.
"""

from typing import NamedTuple


class DoRAShares(NamedTuple):
    """
        weight <- weight + whole ((1 + gain (g - 1)) (weight + inner delta) - weight)

    g: magnitude / length; the length of weight + delta becomes that of weight + inner delta
    """

    whole: float = 1.0
    gain: float = 1.0
    inner: float = 1.0


def dora_lycoris(strength) -> DoRAShares:
    """Weaken the rescaling but not the difference, which stays even at strength 0.

    Source: LyCORIS 4.1.3 functional/general.py, weight_decompose, as its modules call it.
    """
    return DoRAShares(gain=strength)


def dora_whole(strength) -> DoRAShares:
    """Interpolate between the weight and the merged weight, as ComfyUI and A1111 do.

    Source: ComfyUI comfy/weight_adapter/base.py, weight_decompose; A1111 extensions-builtin/Lora/network.py.
    """
    return DoRAShares(whole=strength)


def dora_peft(strength) -> DoRAShares:
    """Weaken the difference, also in the lengths: at strength 0 the rows still have the learned magnitudes.

    Source: PEFT 0.21.2 tuners/lora/layer.py, scale_layer; tuners/lora/dora.py.
    """
    return DoRAShares(inner=strength)


class TurnShares(NamedTuple):
    """
        weight <- weight + whole (gain turned - weight)         each stage's blocks become turn (R - 1) + 1

    The gain of an OFT with rescale is not weakened.
    """

    whole: float = 1.0
    turn: float = 1.0


def turn_lycoris(strength) -> TurnShares:
    """Interpolate each block between the identity and itself, as LyCORIS and kohya do.

    With a gain, strength 0 does not give back the weight.

    Source: LyCORIS 4.1.3 modules/diag_oft.py, make_weight; functional/boft.py; kohya-ss/sd-scripts networks/oft.py.
    """
    return TurnShares(turn=strength)


def turn_comfyui(strength) -> TurnShares:
    """Interpolate both the blocks and the result, as ComfyUI does: one stage has the square of the strength.

    Source: ComfyUI comfy/weight_adapter/oft.py and boft.py, calculate_weight.
    """
    return TurnShares(strength, strength)


def turn_whole(strength) -> TurnShares:
    """Interpolate between the weight and the merged weight, as A1111 does.

    Source: A1111 extensions-builtin/Lora/network_oft.py.
    """
    return TurnShares(whole=strength)
