"""Known bugs of Qwen2.5-VL's and Qwen3-VL's positions."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import qwen_vl
from refsd.networks.bugs import Change, changing, dropping

_SECTIONS = (qwen_vl, "in_turn", qwen_vl.interleaved), (qwen_vl, "interleaved", qwen_vl.in_turn)

BUGS = (
    Mutant("M-RoPE's sections are interleaved, or the reverse", Change(replaced=_SECTIONS)),
    Mutant("M-RoPE turns by each token's number alone", dropping("positions")),
    Mutant("M-RoPE turns by the time alone", changing("positions", lambda p: np.repeat(p[..., :1], 3, axis=-1))),
    Mutant("M-RoPE's row and column are swapped", changing("positions", lambda p: p[..., [0, 2, 1]])),
    Mutant("M-RoPE's positions are one token late", changing("positions", lambda p: np.roll(p, 1, axis=1))),
)
