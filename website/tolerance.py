"""The living figure on tolerances: an honest engine, one that rounds small numbers too far, and a bound."""

import json

import numpy as np

import refsd

CASE = "silu/f32/wide-x2x320"
SMALL = 1e-3


def numbers() -> dict[str, list[float]]:
    """Each element of the case's output: its value, its bound, and two engines' errors, all as absolute values."""
    case = refsd.golden(CASE)
    truth, x = case.truth["y"], case.inputs["x"]
    with np.errstate(over="ignore"):
        honest = x / (1 + np.exp(-x))
    wrong = np.where(np.abs(honest) < SMALL, honest.astype(np.float16), honest)
    rows = {"value": truth, "bound": case.bound["y"], "honest": honest - truth, "wrong": wrong - truth}
    return {name: [float(f"{abs(x):.4g}") for x in np.ravel(y)] for name, y in rows.items()}


def pages() -> dict[str, str]:
    data = json.dumps(numbers())
    return {
        "learn/tolerance.md": f"""# One tolerance, or a bound for each element

Two engines compute SiLU of numbers over 24 octaves (`{CASE}`). The honest one computes in float32, as it says. The
wrong one does too, but rounds results below {SMALL} to float16. Each dot is an error: the larger the number, the
larger what float32 may lose there, which is its bound. On the left the wrong engine lies far above the bound, and
far below what is right for larger numbers: below 6e-8 float16 has no number, and the error is the number itself.
Move the tolerance: at which does the wrong engine fail and the honest one pass? At none: a horizontal line cannot
follow the bounds.

```{{raw}} html
<div id="tolerance" class="living">
  <script type="application/json">{data}</script>
  <form onsubmit="return false"><label>Tolerance <input type="range" min="0" max="100" value="60"></label></form>
  <div class="legend"></div>
  <canvas role="img" aria-label="Errors of two engines, element by element, on a logarithmic scale"></canvas>
  <output aria-live="polite"></output>
</div>
<script src="../_static/axes.js"></script><script src="../_static/tolerance.js"></script>
```

How the bound is derived, and what else a verdict looks at: [how a verdict is made](../docs/verdict.md), with code
[notebook 09](../notebooks/09_judging_an_engine.ipynb).
"""
    }
