"""The living figure on tolerances: an honest engine, one that rounds small numbers too far, and a bound."""

import json

import numpy as np

import refsd

CASE = "silu/f32/wide-x2x320"
SMALL = 1e-3


def numbers() -> dict[str, list[float]]:
    """bound, honest and wrong: of each element of the case's output, as absolute values of errors."""
    case = refsd.golden(CASE)
    truth, x = case.truth["y"], case.inputs["x"]
    with np.errstate(over="ignore"):
        honest = x / (1 + np.exp(-x))
    wrong = np.where(np.abs(honest) < SMALL, honest.astype(np.float16), honest)
    rows = {"bound": case.bound["y"], "honest": honest - truth, "wrong": wrong - truth}
    return {name: [float(f"{abs(x):.4g}") for x in np.ravel(y)] for name, y in rows.items()}


def pages() -> dict[str, str]:
    data = json.dumps(numbers())
    return {
        "learn/tolerance.md": f"""# One tolerance, or a bound for each element

Two engines compute SiLU of numbers over 24 octaves (`{CASE}`). The teal one computes in float32, as it says. The
red one does too, but rounds results below {SMALL} to float16. Dots are errors, grey marks what float32 may lose
there. Move the tolerance: at which does the wrong engine fail and the honest one pass?

```{{raw}} html
<div id="tolerance" class="living">
  <script type="application/json">{data}</script>
  <form onsubmit="return false"><label>Tolerance <input type="range" min="0" max="100" value="60"></label></form>
  <canvas role="img" aria-label="Errors of two engines, element by element, on a logarithmic scale"></canvas>
  <output aria-live="polite"></output>
</div>
<script src="../_static/tolerance.js"></script>
```

How the bound is derived, and what else a verdict looks at: [how a verdict is made](../docs/verdict.md), with code
[notebook 09](../notebooks/09_judging_an_engine.ipynb).
"""
    }
