"""The living figure on rounding: one block of FLUX, run in four formats."""

import json

import numpy as np

from refsd.cases import CASES
from refsd.components import forward, load
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import PROFILES
from refsd.weights.checkpoint import open_checkpoint
from refsd.weights.model_files import model_files

CASE, BLOCK = "flux-dev/flux/between", "double_blocks.0"
FORMATS = {"float64": "float64", "float32": "float32", "float16": "torch-f16", "bfloat16": "torch-bf16"}
_ELEMENTS = 8


def runs() -> dict[str, dict[str, np.ndarray]]:
    """Run the block in each format. -> format -> operation of the picture's tokens -> its result"""
    case = CASES[CASE]
    assert case.model is not None
    found = {}
    for name, profile in FORMATS.items():
        m, params = load(open_checkpoint(model_files(case.model, "ldm")), "flux", Arithmetic(PROFILES[profile]))
        m.taps = Taps(f"{BLOCK}.*", ops=True)
        forward("flux", m, {n: x.values() for n, x in case.realize().items()}, {**params, **case.params})
        found[name] = {tap.removeprefix(f"{BLOCK}."): np.float64(y) for tap, y in m.taps.items()}
    return found


def numbers() -> dict:
    """steps: the operations; errors: format -> relative L2 error of each; shown: format -> some elements of each"""
    found = runs()
    truth = found["float64"]
    wide = max(y.shape[1] for y in truth.values() if y.ndim == 3)
    tokens = [(tap, y) for tap, y in truth.items() if y.ndim == 3 and y.shape[1] == wide]
    # A block's result is that of its last operation.
    steps = [tap for i, (tap, y) in enumerate(tokens) if not any(np.array_equal(y, z) for _, z in tokens[:i])]
    error = lambda y, t: float(f"{np.linalg.norm(y - t) / np.linalg.norm(t):.3g}")
    some = lambda y: [float(f"{x:.9g}") for x in y.reshape(y.shape[0], -1)[0, :_ELEMENTS]]
    return {
        "steps": steps,
        "errors": {
            name: [error(y[tap], truth[tap]) for tap in steps] for name, y in found.items() if y is not truth
        },
        "shown": {name: [some(y[tap]) for tap in steps] for name, y in found.items()},
    }


def pages() -> dict[str, str]:
    data = json.dumps(numbers())
    return {
        "learn/rounding.md": f"""# Rounding through a block

The picture's tokens go through a double block of FLUX (`{CASE}`, a tiny copy) four times: in float64, in float32,
and as torch runs it in float16 and bfloat16, where each operation rounds what it stores. Digits in bold are
those of float64.

```{{raw}} html
<div id="rounding" class="living">
  <script type="application/json">{data}</script>
  <form onsubmit="return false">
    <label>Element <input type="range" min="0" max="{_ELEMENTS - 1}" value="0"> <b></b></label>
  </form>
  <div class="legend"></div>
  <canvas class="low" role="img" aria-label="Relative error of each operation in three formats"></canvas>
  <div class="scroll" tabindex="0"><table></table></div>
</div>
<script src="../_static/axes.js"></script><script src="../_static/rounding.js"></script>
```

The lines of float16 and bfloat16 are parallel, a factor of 8 apart, as are their units, 2^-11 and 2^-8. float32's
unit is 2^-24, and only the first layer norm is near it: FLUX multiplies its guidance of 3.5 by 1000 before it takes
the sines, float32 loses some of that angle, and modulation carries it to every token. No operation is to blame for
the error at the end: that is why refsd judges each against an *honest* run in the declared format, and not by one
tolerance. See [how a verdict is made](../docs/verdict.md).
"""
    }
