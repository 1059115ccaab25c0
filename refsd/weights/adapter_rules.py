"""How an adapter file is applied at a strength other than 1: rules of trainers and engines, by name."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters import CrossedDoRA, DoRA, LoRA
from refsd.kernels.adapters.rotation import clamped, limited
from refsd.kernels.adapters.strengths import (
    DoRAShares,
    TurnShares,
    dora_lycoris,
    dora_peft,
    dora_whole,
    turn_comfyui,
    turn_lycoris,
    turn_whole,
)

# Kinds of adapter_kinds.KINDS.
_PLAIN = frozenset(("lora", "loha", "lokr", "full", "norm"))
_ROTATED = frozenset(("oft",))
_LYCORIS = _PLAIN | _ROTATED | {"glora", "ia3"}
_OF_PEFT = frozenset(("oft of PEFT", "boft of PEFT", "ia3 of PEFT"))


class Rule(NamedTuple):
    """
    title:       for a person
    kinds:       what it loads
    fixed:       kinds for which it knows no strength but 1
    decomposed:  which parts hold the magnitudes of a DoRA that it reads: dora_scale, magnitude or both
    ignores:     whether it applies the LoRA alone where it does not read the magnitudes; else they are refused
    dora:        where a strength enters a DoRA
    eps:         whether the machine epsilon is added to a DoRA's lengths
    of_base:     whether lengths of rows are those of the weight, without the delta
    crossed:     whether a DoRA on rows is divided by the lengths of the columns
    columns:     whether it knows a DoRA on columns, and one of a LoHa or LoKr
    turn:        where a strength enters an OFT or BOFT
    limit:       (skew blocks, alpha, outputs) -> the blocks within their constraint
    rescales:    whether an OFT's rescale is read (a BOFT's is in any case)
    in_turn:     whether an adapter meets the weight that those before it on the layer have left; else each meets
                 the layer's own
    """

    title: str
    kinds: frozenset[str]
    fixed: frozenset[str] = frozenset()
    decomposed: frozenset[str] = frozenset(("dora_scale",))
    ignores: bool = False
    dora: Callable[[float], DoRAShares] = dora_lycoris
    eps: bool = True
    of_base: bool = False
    crossed: bool = False
    columns: bool = True
    turn: Callable[[float], TurnShares] = turn_lycoris
    limit: Callable[[np.ndarray, float, int], np.ndarray] = lambda q, alpha, O: limited(q, alpha * O)
    rescales: bool = True
    in_turn: bool = False

    def decompose(self, inner, magnitude, on_input: bool) -> DoRA | CrossedDoRA | None:
        """The DoRA of these parts; None where it knows none such. magnitude: of the rows, or of the columns"""
        if (on_input or not isinstance(inner, LoRA)) and not self.columns:
            return None
        if self.crossed and not on_input:
            return CrossedDoRA(inner, magnitude)
        eps = float(np.finfo(magnitude.dtype).eps) if self.eps else 0.0
        return DoRA(inner, magnitude, on_input, eps, self.of_base and not on_input, self.dora)


_PEFT = Rule(
    "PEFT",
    frozenset(("lora", "loha", "lokr")) | _OF_PEFT,
    fixed=_OF_PEFT,
    decomposed=frozenset(("dora_scale", "magnitude")),
    dora=dora_peft,
    eps=False,
    columns=False,
)
RULES: dict[str, Rule] = {
    "lycoris": Rule("LyCORIS", _LYCORIS),
    "peft": _PEFT,
    "comfyui": Rule(
        "ComfyUI",
        _LYCORIS - {"ia3"},
        dora=dora_whole,
        of_base=True,
        turn=turn_comfyui,
        limit=lambda q, alpha, O: limited(q, alpha),
        rescales=False,
        in_turn=True,
    ),
    "a1111": Rule(
        "A1111",
        _LYCORIS - {"glora"},
        dora=dora_whole,
        eps=False,
        crossed=True,
        turn=turn_whole,
        limit=lambda q, alpha, O: clamped(q, alpha * O),
        in_turn=True,
    ),
    "sdcpp": Rule("stable-diffusion.cpp", _PLAIN - {"norm"}, decomposed=frozenset(), ignores=True),
}
TRAINER = "trainer"  # LyCORIS's rule for what LyCORIS writes, PEFT's for what PEFT writes
NAMES = (TRAINER, *RULES)


def rule_of(name: str, kind: str, parts) -> Rule:
    """name: one of NAMES. kind: of KINDS; parts: their names, where PEFT's DoRA has a magnitude"""
    if name != TRAINER:
        return RULES[name]
    return _PEFT if kind in _OF_PEFT or "magnitude" in parts else RULES["lycoris"]
