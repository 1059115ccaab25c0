"""Pad, roll, concat, and elementwise add and mul as ggml graphs."""

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params, Refusal
from refsd.golden.case import Case


def _pad(g: Graph, inputs: Inputs, params: Params) -> Result:
    N, C, H, W = inputs["x"].shape
    top, bottom, left, right = params["padding"]
    pad = g.pad_ext if params["mode"] == "zero" else g.pad_ext_circular
    y = pad(g.floats(inputs["x"]), left, right, top, bottom, 0, 0, 0, 0)
    return Result(y, (N, C, top + H + bottom, left + W + right))


def _only_zeros_or_a_circle(case: Case) -> str | None:
    mode = case.params.get("mode", "zero")
    return None if mode in ("zero", "circular") else f"ggml has no two-dimensional {mode} border"


def _roll(g: Graph, inputs: Inputs, params: Params) -> Result:
    _, _, H, W = inputs["x"].shape
    return Result(g.roll(g.floats(inputs["x"]), params["right"] % W, params["down"] % H, 0, 0), inputs["x"].shape)


def _concat(g: Graph, inputs: Inputs, params: Params) -> Result:
    a, b = inputs["a"], inputs["b"]
    axis = params["axis"] % len(a.shape)
    y = g.concat(g.floats(a), g.floats(b), len(a.shape) - 1 - axis)
    return Result(y, (*a.shape[:axis], a.shape[axis] + b.shape[axis], *a.shape[axis + 1 :]))


def _of_two(function: str):
    def build(g: Graph, inputs: Inputs, params: Params) -> Result:
        return Result(getattr(g, function)(g.floats(inputs["a"]), g.floats(inputs["b"])), inputs["a"].shape)

    return build


BUILDERS: dict[str, Builder] = {
    "pad": Builder(_pad, ("ggml_pad_ext", "ggml_pad_ext_circular")),
    "roll": Builder(_roll, ("ggml_roll",)),
    "concat": Builder(_concat, ("ggml_concat",)),
    "add": Builder(_of_two("add"), ("ggml_add",)),
    "mul": Builder(_of_two("mul"), ("ggml_mul",)),
}
REFUSALS: dict[str, Refusal] = {"pad": _only_zeros_or_a_circle}
