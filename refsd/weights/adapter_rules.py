"""Rules, by name, by which trainers and engines apply an adapter file, above all at a strength other than 1."""

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

# Keys of adapter_kinds.KINDS.
_PLAIN = frozenset(("lora", "loha", "lokr", "full", "norm"))
_ROTATED = frozenset(("oft",))
_LYCORIS = _PLAIN | _ROTATED | {"glora", "ia3"}
_OF_PEFT = frozenset(("oft of PEFT", "boft of PEFT", "ia3 of PEFT"))


class Rule(NamedTuple):
    """How one program applies adapters.

    title:       name of the program, for messages
    kinds:       kinds that it loads
    fixed:       kinds that it applies at strength 1 only
    decomposed:  parts from which it reads a DoRA's magnitudes: dora_scale, magnitude or both
    ignores:     True if it applies the LoRA alone where it does not read the magnitudes; False: refsd refuses those
    dora:        strength -> how it enters a DoRA
    eps:         whether the machine epsilon is added to a DoRA's norms
    of_base:     whether the norms of rows are those of the weight without the delta
    crossed:     whether a DoRA on rows is divided by the norms of the columns
    columns:     whether it supports a DoRA on columns, and a DoRA of a LoHa or LoKr
    turn:        strength -> how it enters an OFT or BOFT
    limit:       (skew blocks, alpha, outputs) -> the blocks within their constraint
    rescales:    whether it reads an OFT's rescale (it always reads a BOFT's)
    in_turn:     True if each adapter of a layer is computed from the weight as the previous adapters left it; False
                 if each is computed from the model's weight
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
        """Return the DoRA of an inner adapter; None if this program does not support it.

        magnitude: [O], or [I] with `on_input`, where the magnitudes are those of columns
        """
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
    """Return the rule for one adapter; only "trainer" depends on the adapter.

    name:  one of NAMES
    kind:  a key of adapter_kinds.KINDS
    parts: names of the adapter's parts; "magnitude" marks a DoRA that PEFT wrote
    """
    if name != TRAINER:
        return RULES[name]
    return _PEFT if kind in _OF_PEFT or "magnitude" in parts else RULES["lycoris"]
