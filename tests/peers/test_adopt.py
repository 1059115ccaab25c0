"""Modules of torch are adopted: the graph is the module, honest ports conform, wrong ones are placed and named."""

import os
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from adopted_ports import BUGS, adopted, first_changed, judged, ports_of
from torch.overrides import TorchFunctionMode
from typer.testing import CliRunner
from wrong_ropes import BUILT, WRONG, pictures_from_one

from refsd.adoption.folder import read
from refsd.cli import app
from refsd.components import COMPONENTS
from refsd.judges.model import ModelJudge
from tests.refsd.adoption.conftest import ROOT, forgotten  # noqa: F401

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
]


def test_the_fixture_is_what_torch_exports_today(tmp_path):
    """The folder of tests/fixtures, made again: inputs differ by torch's draw alone, which the seed fixes."""
    source = ROOT / "examples/adopt/mymodel.py"
    done = CliRunner().invoke(app, ["adopt", f"{source}:build", "-o", str(tmp_path / "tiny"), "--taps"])
    assert done.exit_code == 0, done.output
    fixture = ROOT / "tests/fixtures/adopted/tiny"
    for file in ("case.json", "inputs.safetensors"):
        assert (tmp_path / "tiny" / file).read_bytes() == (fixture / file).read_bytes(), file
    nodes = [
        [(node.op_type, [*node.input], [*node.output]) for node in onnx.load(folder / "graph.onnx").graph.node]
        for folder in (tmp_path / "tiny", fixture)
    ]
    assert nodes[0] == nodes[1]
    assert "conv_in [2, 16, 12, 8]" in done.output
    assert "4 of 4 taps right" in dumped(tmp_path / "tiny", source.parent)


def dumped(folder, place):
    """Run examples/adopt/dump.py beside the model in `place`, as docs/adopt.md has it -> what `compare` prints."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    script = [sys.executable, "-P", ROOT / "examples/adopt/dump.py", folder.name]
    subprocess.run(script, env=environment, cwd=folder.parent, check=True)
    done = CliRunner().invoke(app, ["compare", str(folder.parent / "dump.safetensors"), str(folder)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_dump_of_own_weights_and_gains_by_what_they_do(tmp_path):
    """Gains called otherwise than weight are drawn around 1; a module with its own weights is dumped, too."""
    (tmp_path / "mymodel.py").write_text(
        "import torch\n\n\n"
        "class Norm(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.gain_of = torch.nn.Parameter(torch.randn(6))\n"
        "        self.b = torch.nn.Parameter(torch.randn(6))\n\n"
        "    def forward(self, x):\n        x = x - x.mean(-1, keepdim=True)\n"
        "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain_of + self.b\n\n\n"
        "class Scaled(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm, self.up = Norm(), torch.nn.Linear(6, 6)\n"
        "        self.s = torch.nn.Parameter(torch.randn(6, 1, 1))\n\n"
        "    def forward(self, x):\n        return self.up(self.norm(x))[:, :, None, None] * self.s\n\n\n"
        "def build():\n    torch.manual_seed(0)\n    return Scaled(), {'x': torch.randn(2, 6)}\n"
    )
    for folder, options in (("drawn", ()), ("own", ("--own-weights",))):
        source = f"{tmp_path / 'mymodel.py'}:build"
        done = CliRunner().invoke(app, ["adopt", source, "-o", str(tmp_path / folder), *options])
        assert done.exit_code == 0, done.output
        assert "taps right" in dumped(tmp_path / folder, tmp_path)
    recipes = read(tmp_path / "drawn").inputs
    assert {name: recipe.offset for name, recipe in recipes.items() if name != "x"} == {
        "norm.gain_of": 1.0,
        "norm.b": 0.0,
        "s": 1.0,
        "up.weight": 0.0,
        "up.bias": 0.0,
    }


def test_what_gives_tuples_and_model_outputs_is_dumped(tmp_path):
    (tmp_path / "mymodel.py").write_text(
        "import torch\nfrom diffusers.models.modeling_outputs import Transformer2DModelOutput as Output\n\n\n"
        "class Halves(torch.nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x).chunk(2, -1)\n\n\n"
        "class Whole(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.halves, self.act = Halves(6, 8), torch.nn.SiLU()\n\n"
        "    def forward(self, x):\n        a, b = self.halves(x)\n"
        "        return Output(sample=a * self.act(self.act(b)))\n\n\n"
        "def build():\n    return Whole(), {'x': torch.linspace(-2, 3, 24).reshape(4, 6)}\n"
    )
    source, out = f"{tmp_path / 'mymodel.py'}:build", tmp_path / "whole"
    done = CliRunner().invoke(app, ["adopt", source, "-o", str(out), "--taps"])
    assert done.exit_code == 0, done.exception
    taps = re.findall(r"^  (\S+) \[", done.output, re.MULTILINE)
    assert {"halves.0", "halves.1", "act", "act.1"} <= {*taps}
    assert "5 of 5 taps right" in dumped(out, tmp_path)


@pytest.mark.parametrize("name", ["prx", "ernie"])
def test_a_class_without_a_page(name):
    """`adopted` holds the graph to torch's float64 within 1e-12."""
    case, port = adopted(name)
    assert judged(case, port).conforms
    known = ModelJudge().reference_taps(case, case.realize())
    _, taps = port.run_tapped(case, {})
    assert len(taps) > 40
    for tap, y in taps.items():
        assert np.linalg.norm(known[tap].ravel() - y.ravel()) <= 1e-3 * np.linalg.norm(y), tap


@pytest.mark.parametrize(
    ("name", "nameless"),
    [
        ("ernie", {"parts joined in the other order"}),
        ("prx", {"RoPE turns the other way", "scale without 1 +"}),
    ],
)
def test_wrong_ports_are_placed_and_named(name, nameless):
    """All ten bugs are seen and placed; `nameless` get no name, as docs/adopt.md says."""
    case, port = adopted(name)
    ports, named = dict(ports_of(name, port, len(BUGS))), set()
    for bug, port.bug in ports.items():
        result = judged(case, port)
        assert not result.conforms and result.place == first_changed(case, port), bug
        named |= {bug for cause in result.causes if re.search(BUGS[bug].named, cause)}
    assert ports.keys() == BUGS.keys() == named | nameless and not named & nameless


@pytest.mark.parametrize("name", BUILT)
def test_ropes_are_recognised_and_wrong_ones_are_named(name):
    """In FLUX.1's stacks, Z-Image's and Qwen-Image's complex numbers and Qwen3's halves.

    Torch's own float64 run of Z-Image has tables of complex64.
    """
    build, calls = BUILT[name]
    case, port = adopted(name, build, 1e-5 if name == "zimage" else 1e-12)
    assert [step.label for step in COMPONENTS[case.name].run.graph.steps].count("rope") == calls
    assert judged(case, port).conforms
    for bug, port.bug in {
        **WRONG,
        **({"positions from one": pictures_from_one} if name == "qwen_image" else {}),
    }.items():
        result = judged(case, port)
        assert not result.conforms and result.place == first_changed(case, port), bug
        assert any("rope" in cause.lower() and bug in cause for cause in result.causes), (bug, result.causes)


@pytest.mark.parametrize("name", ["flux", "qwen3"])
def test_a_wrong_rope_is_placed_at_itself(name):
    """In a port that gives what it turned: after RoPE, before attention."""
    case, port = adopted(name, BUILT[name][0])
    whole = port.run_tapped
    part = {"flux": "transformer_blocks.0.attn", "qwen3": "layers.0.self_attn"}[name]

    def run_tapped(*asked):
        with Attended() as attended:
            y, taps = whole(*asked)
        q, k = (t.transpose(1, 2) if name == "flux" else t for t in attended.first[:2])
        return y, {**taps, f"{part}.rope": q.numpy(), f"{part}.rope.1": k.numpy()}

    port.run_tapped = run_tapped
    assert judged(case, port).conforms
    for bug, port.bug in WRONG.items():
        result = judged(case, port)
        assert result.place == f"{part}.rope" and any(bug in cause for cause in result.causes), (bug, result)


class Attended(TorchFunctionMode):
    """Keeps the arguments of the first attention, heads not repeated."""

    first: tuple = ()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.scaled_dot_product_attention and not self.first:
            self.first = (*args, *(kwargs or {}).values())
        return func(*args, **(kwargs or {}))


def test_what_is_no_module_is_refused(tmp_path):
    model, out = tmp_path / "model.py", tmp_path / "out"
    model.write_text(
        "import torch\n\n\nclass Three(torch.nn.Module):\n    def forward(self, x):\n        return 3\n\n\n"
        "def three():\n    return Three(), {'x': torch.ones(2)}\n\n\n"
        "def build():\n    return 3, {}\n\n\ndef broken():\n    raise OSError('x')\n"
    )
    for function, says in (
        (":build", "expected a torch.nn.Module"),
        (":broken", "OSError: x"),
        (":buidl", "build"),
        (":three", "Three: it returns int, expected tensors"),
        ("", "name the function that returns (module, arguments), too: "),
    ):
        done = CliRunner().invoke(app, ["adopt", f"{model}{function}", "-o", str(out)])
        assert says in str(done.exception) and not out.exists(), done.exception


class Folded(torch.nn.Module):
    """Its last module has the name that an output usually gets, and is not the output."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(6, 8)

    def forward(self, x):
        return self.out(x).unfold(1, 2, 2).flatten(2) * 0.5


def test_a_module_named_as_an_output_is_a_tap_beside_it():
    case, port = adopted("folded", lambda: (Folded(), {"x": torch.randn(2, 4, 6)}))
    outputs, taps = port.run_tapped(case, case.realize())
    assert [*outputs] == ["output"] and "out" in taps
    assert judged(case, port).conforms


class Turned(torch.nn.Module):
    """RoPE by complex numbers, as Z-Image and LTX write it: rows of a table, parts, joins."""

    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 8)

    def forward(self, x, ids):
        angles = torch.outer(torch.arange(9).to(x.dtype), 0.3 ** torch.arange(4).to(x.dtype))
        table = torch.polar(torch.ones_like(angles), angles)
        table = torch.cat([table[..., :1], table[:, None, ..., 1:].squeeze(1)], -1)
        rows = torch.cat([part.unsqueeze(-2) for part in table[ids].split([1, 3], dim=-1)], dim=-1).squeeze(-2)
        rows = rows.view(2, -1, 1, 4).expand(2, 5, 1, 4).squeeze(-2)
        y = torch.view_as_complex(self.proj(x).reshape(*x.shape[:-1], 4, 2))
        return torch.view_as_real(y * torch.stack([rows, rows * rows], 0)[1]).flatten(-2)


def test_complex_rows_are_exported():
    call = {"x": torch.randn(2, 5, 8), "ids": torch.tensor([[0, 3, 1, 8, 2], [4, 4, 0, 7, 5]])}
    case, port = adopted("turned", lambda: (Turned().eval(), call))
    assert judged(case, port).conforms


class Attends(torch.nn.Module):
    """Attention that is given its usual scale, as AuraFlow writes it, and is wrong by another."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj, self.scale = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32), 0.25

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.proj(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("scale", "taps", "named"),
    [
        (1.0, True, "attention before it: scale missing"),
        (1 / 16, True, "attention before it: scale 1/D"),
        (0.4, True, "attention before it: scale is 0.4, not 0.25"),
        (1.0, False, "attention's scores are multiplied by 1 for 1/sqrt(D), or the reverse"),
        (1 / 16, False, "attention's scores are multiplied by 1/D"),
    ],
)
def test_a_wrong_scale_of_attention_is_named(scale, taps, named):
    case, port = adopted("attends", lambda: (Attends(), {"x": torch.randn(2, 11, 32)}))
    assert judged(case, port).conforms
    port._module.scale, whole = scale, port.run_tapped
    port.run_tapped = lambda *asked: (whole(*asked)[0], whole(*asked)[1] if taps else {})
    assert judged(case, port).causes == (named,)


class Branches(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_a_module_that_branches_on_values_is_refused_in_one_line(capfd):
    from refsd.adoption.capture import capture
    from refsd.numerics.errors import BadInput

    where = r"at test_adopt.py:\d+ `return x if x.sum\(\) > 0 else -x`"
    line = f"torch cannot export Branches: its path depends on values, {where}"
    with pytest.raises(BadInput, match=line):
        capture(Branches(), {"x": torch.randn(2, 3)})
    assert capfd.readouterr() == ("", "")


PEAK = """
import resource
import sys
from pathlib import Path

from refsd.adoption import folder
from refsd.commands.adopt import adopt
from refsd.engines.reference import Reference
from refsd.numerics.profiles import FLOAT32

folder.LARGEST = 1 << 20
place = Path(sys.argv[1]).parent / "out"
adopt(sys.argv[1] + ":build", place, None, [], [], False)
if sys.argv[2] == "drawn":
    (place / folder.DRAWN).unlink()
case = folder.read(place)
Reference(FLOAT32).run(case, case.realize())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
STACK = """
import torch
from accelerate import init_empty_weights


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2048, 2048) for _ in range({layers}))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.silu(layer(x))
        return x


def build():
    torch.manual_seed(0)
    with init_empty_weights(include_buffers=False):
        return Stack(), {{"x": torch.randn(2, 3, 2048)}}
"""


@pytest.mark.parametrize("source", ["read", "drawn"])
def test_weights_are_streamed(tmp_path, source):
    """A module of twelve layers more, 192 MiB of float32, takes no more memory to adopt and to run."""
    peaks = []
    for layers in (2, 14):
        model = tmp_path / str(layers) / "model.py"
        model.parent.mkdir()
        model.write_text(STACK.format(layers=layers))
        done = subprocess.run(
            [sys.executable, "-P", "-c", PEAK, str(model), source], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 64, peaks
