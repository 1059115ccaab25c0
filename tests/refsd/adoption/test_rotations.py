"""RoPE as exporters spell it out: recognised, computed as its nodes, and its known bugs named."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.adoption import recognition
from refsd.adoption.folder import read
from refsd.adoption.rotations import positions
from refsd.cli import app
from refsd.components import COMPONENTS
from refsd.engines.reference import Reference
from refsd.kernels.rope import rope_angles
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_BF16

N, L, H, D = 2, 7, 3, 12
IDS = np.stack([np.zeros(L, int), np.arange(L), 3 + np.arange(L) % 4], axis=-1)[None]
AXES, THETA = (4, 4, 4), 100.0
ANGLES = rope_angles(IDS, AXES, THETA)[0]
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
CONSTANTS = {
    "0": [0], "1": [1], "2": [2], "half": [D // 2], "end": [D], "axis": [-1],
    "pairs": [0, 0, 0, D // 2, 2], "halved": [0, 0, 0, 2, D // 2], "flat": [0, 0, 0, D],
}  # fmt: skip


def sliced(x, start, end, made):
    return "Slice", [x, start, end, "axis"], made


def added():
    return [("Mul", ["x", "cos"], "a"), ("Mul", ["partner", "sin"], "b"), ("Add", ["b", "a"], "rope")]


def by_halves():
    """rotate_half of transformers."""
    return [
        sliced("x", "0", "half", "first"), sliced("x", "half", "end", "second"), ("Neg", ["second"], "minus"),
        ("Concat", ["minus", "first"], "partner"), *added(),
    ]  # fmt: skip


def by_stacks():
    """apply_rotary_emb of diffusers, use_real_unbind_dim -1."""
    return [
        ("Reshape", ["x", "pairs"], "apart"),
        sliced("apart", "0", "1", "evens"), sliced("apart", "1", "2", "odds"), ("Neg", ["odds"], "minus"),
        ("Concat", ["minus", "evens"], "stacked"), ("Reshape", ["stacked", "flat"], "partner"), *added(),
    ]  # fmt: skip


def by_complex():
    """view_as_complex(x) * freqs."""
    return [
        ("Reshape", ["x", "pairs"], "apart"), sliced("apart", "0", "1", "re"), sliced("apart", "1", "2", "im"),
        ("Mul", ["re", "cos"], "a"), ("Mul", ["im", "sin"], "b"), ("Sub", ["a", "b"], "first"),
        ("Mul", ["re", "sin"], "c"), ("Mul", ["im", "cos"], "d"), ("Add", ["c", "d"], "second"),
        ("Concat", ["first", "second"], "both"), ("Reshape", ["both", "flat"], "rope"),
    ]  # fmt: skip


def by_matrices():
    """apply_rope of FLUX.1's own code: cos is the first column of each matrix, sin the second one."""
    return [
        ("Reshape", ["x", "pairs"], "apart"), sliced("apart", "0", "1", "evens"), sliced("apart", "1", "2", "odds"),
        ("Mul", ["cos", "evens"], "a"), ("Mul", ["sin", "odds"], "b"),
        ("Add", ["a", "b"], "both"), ("Reshape", ["both", "flat"], "rope"),
    ]  # fmt: skip


def tables(spelling):
    if spelling is by_complex:
        return COS[..., None], SIN[..., None]
    if spelling is by_matrices:
        return np.stack([COS, SIN], -1), np.stack([-SIN, COS], -1)
    return [np.tile(t, 2) if spelling is by_halves else np.repeat(t, 2, -1) for t in (COS, SIN)]


def adopted(folder, spelling, heads_first, scale=1.0, steps=None):
    """Adopt a graph that turns x [N, L, H, D], or [N, H, L, D]."""
    of = [(scale * t).astype(np.float32) for t in tables(spelling)]
    of = of if heads_first else [t[:, None] for t in of]
    constants = {name: np.array(value) for name, value in CONSTANTS.items()} | {"cos": of[0], "sin": of[1]}
    nodes = [
        helper.make_node(op, given, [made], name=f"/attn/{made}", **axis(op))
        for op, given, made in [*(steps or spelling()), ("Neg", ["rope"], "y")]
    ]
    shape = (N, H, L, D) if heads_first else (N, L, H, D)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    done = CliRunner().invoke(app, ["adopt", str(path), "-o", str(folder / "m"), "-i", "recipe"])
    assert done.exit_code == 0, done.exception
    return read(folder / "m")


def axis(op) -> dict[str, Any]:
    return {"axis": -1} if op == "Concat" else {}


def labels(case):
    return [step.label for step in COMPONENTS[case.name].run.graph.steps]


def right(a, b, cos, sin):
    return a * cos - b * sin, a * sin + b * cos


def turned(x, halves, heads_first, turn=right, dtype: Any = np.float64, scale=1.0):
    """Turn pairs with the tables that the graph has. The graph's output is this negated."""
    cos, sin = ((scale * t).astype(np.float32).astype(dtype) for t in (COS, SIN))
    cos, sin = (cos, sin) if heads_first else (cos[:, None], sin[:, None])
    x = x.astype(dtype)
    parts = np.split(x, 2, -1) if halves else (x[..., ::2], x[..., 1::2])
    both = turn(*parts, cos, sin)
    return np.concatenate(both, -1) if halves else np.stack(both, -1).reshape(x.shape)


def of(angles, like):
    return (f(angles).reshape(like.shape) for f in (np.cos, np.sin))


SPELLINGS = (by_halves, by_stacks, by_complex, by_matrices)
everywhere = pytest.mark.parametrize("heads_first", [False, True])


@everywhere
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelled_rope_is_one_operation(tmp_path, spelling, heads_first):
    """The truth is that of the nodes, an honest float32 run is theirs but for a rounding or two."""
    case = adopted(tmp_path, spelling, heads_first)
    assert labels(case) == ["rope", "negate"]
    x = case.realize()["x"].values()
    truth, near = (Reference(numerics).run(case, case.realize())["y"] for numerics in (FLOAT64, FLOAT32))
    for dtype, y in ((np.float64, truth), (np.float32, near)):
        steps = turned(x, spelling is by_halves, heads_first, dtype=dtype)
        assert y.dtype == dtype and np.abs(y + steps).max() <= 4 * np.finfo(dtype).eps * np.abs(x).max()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_where_results_are_rounded_its_steps_are_too(tmp_path, spelling, monkeypatch):
    case = adopted(tmp_path, spelling, True)
    inputs = case.realize()
    y = Reference(TORCH_BF16).run(case, inputs)["y"]
    for ends in ("Add", "Reshape"):
        kept = [match for match in recognition._MATCHES[ends] if "rope" not in match.__name__]
        monkeypatch.setitem(recognition._MATCHES, ends, kept)
    read(tmp_path / "m")
    assert "rope" not in labels(case)
    np.testing.assert_array_equal(y, Reference(TORCH_BF16).run(case, inputs)["y"])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tables_of_no_rotation_leave_the_steps(tmp_path, spelling):
    """As YaRN scales them."""
    case = adopted(tmp_path, spelling, True, scale=1.25)
    y = Reference(FLOAT32).run(case, case.realize())["y"]
    x = case.realize()["x"].values()
    np.testing.assert_array_equal(y, -turned(x, spelling is by_halves, True, dtype=np.float32, scale=1.25))


@pytest.mark.parametrize("spelling", [by_halves, by_stacks])
def test_other_partners_are_no_rope(tmp_path, spelling):
    steps = spelling()
    joined = next(i for i, step in enumerate(steps) if step[0] == "Concat")
    steps[joined] = "Concat", steps[joined][1][::-1], steps[joined][2]
    assert "rope" not in labels(adopted(tmp_path, spelling, True, steps=steps))


@everywhere
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("turn", "named"),
    [
        (lambda a, b, cos, sin: right(a, b, cos, -sin), "turned the other way"),
        (lambda a, b, cos, sin: right(a, b, sin, cos), "cosine and sine exchanged"),
        (lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos), "no channel of a pair is negated"),
        (lambda a, b, cos, sin: right(a, b, *of(rope_angles(IDS + 1, AXES, THETA)[0], cos)), "positions from one"),
    ],
)
def test_its_bugs_are_named(tmp_path, spelling, heads_first, turn, named):
    """In [N, H, L, D], as attention has it, too."""
    case = adopted(tmp_path, spelling, heads_first)
    x = case.realize()["x"].values()
    y = turned(x, spelling is by_halves, heads_first, turn).astype(np.float32)
    save_file({"attn.rope": np.ascontiguousarray(y)}, tmp_path / "d.safetensors")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "d.safetensors"), str(tmp_path / "m")])
    assert done.exit_code == 1 and named in done.output, done.output


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("axes_dim", "theta", "ids"),
    [
        ((16, 56, 56), 1e4, IDS),
        ((32, 48, 48), 256.0, [[[33, 0, 0], [33, 0, 1], [33, 1, 0]]]),
        ((128,), 1e6, np.arange(600)[None, :, None]),
        ((4, 6, 6), 1e4, [[[0, -2, -3], [0, -2, 1], [0, 2, 2]]]),
        ((8,), 31.7, np.arange(5)[None, :, None]),
    ],
)
def test_positions_are_found_in_tables(axes_dim, theta, ids, dtype):
    cos, sin, angles = tables_of(rope_angles(ids, axes_dim, theta), dtype)
    found = positions(cos, sin, angles.shape, np.dtype(dtype).itemsize)
    assert found is not None and (found.axes_dim, found.theta) == (axes_dim, theta)
    np.testing.assert_array_equal(found.ids, ids)


def test_positions_that_are_no_whole_numbers_are_not_made_up():
    for ids in (np.arange(9)[None, :, None] / 3, 5000 + np.arange(9)[None, :, None]):
        cos, sin, angles = tables_of(rope_angles(ids, (16,), 1e4), np.float64)
        assert positions(cos, sin, angles.shape, 8) is None


def tables_of(angles, dtype):
    cos, sin = (f(angles).astype(dtype).astype(np.float64).tobytes() for f in (np.cos, np.sin))
    return cos, sin, angles
