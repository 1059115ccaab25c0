"""Block diagrams of models, drawn from what runs: each box is a tap, in the order of computation, with its shape.

A tiny copy of the model answers one of refsd's own cases. Neighbouring blocks that compute the same are one box;
how many of them the published model has is counted in the shapes of its tensors.
"""

import html
import re
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import code_pages

from refsd.cases import CASES
from refsd.components import COMPONENTS, forward, load
from refsd.families import FAMILIES
from refsd.golden.wording import counted
from refsd.models.catalogue import NETWORKS
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import PROFILES
from refsd.weights.checkpoint import open_checkpoint
from refsd.weights.model_files import model_files

# Page, heading, a case that runs the model, and the file of its code.
MODELS = (
    ("unet", "UNet of Stable Diffusion 1", "sd15/unet/between", "refsd/models/unet/__init__.py"),
    ("vae", "Decoder of the autoencoder", "sd15/vae-decoder/wide", "refsd/models/vae/__init__.py"),
    ("mmdit", "MMDiT of Stable Diffusion 3", "sd3-medium/mmdit/between", "refsd/models/mmdit/__init__.py"),
    ("flux", "FLUX.1", "flux-dev/flux/between", "refsd/models/flux/__init__.py"),
    ("zimage", "Z-Image", "zimage/zimage/whole", "refsd/models/zimage/__init__.py"),
)
_KINDS = {
    "product": ("linear", "conv2d", "embedding", "text_projection"),
    "norm": ("group_norm", "layer_norm", "rms_norm", "rms_norm_apart", "l2_norm", "adaptive_layer_norm"),
    "attention": ("attention",),
    "position": ("rope", "rope_halves", "timestep_embedding"),
}
_ROW, _GAP, _WIDTH, _PANEL = 22, 18, 260, 420


class Step(NamedTuple):
    """An operation that ran: the tap's name, the operation's, the shape of its result."""

    name: str
    op: str
    shape: tuple[int, ...]


class Unit(NamedTuple):
    """A block at the top of the model's names, and its steps."""

    name: str
    steps: tuple[Step, ...]

    @property
    def signature(self) -> tuple[str, ...]:
        return tuple(step.op for step in self.steps)


class _Recorder(Taps):
    """Taps without their numbers."""

    def __init__(self):
        super().__init__(pattern="", ops=True)
        self.steps: list[Step] = []
        self.op = ""

    def record(self, name, value):
        super().record(name, value)
        if self.op:
            self.steps.append(Step(self.recorded[-1], self.op, value.shape))
        return value


class _Traced(Module):
    """A module that tells its recorder which of its methods computed."""

    def _tap(self, name, y):
        assert isinstance(self.taps, _Recorder)
        op = sys._getframe(1).f_code.co_name
        self.taps.op = name if op == "apply" else op
        y = super()._tap(name, y)
        self.taps.op = ""
        return y


def trace(case_name: str) -> list[Step]:
    """Run a case's model. -> its operations, in order of computation"""
    case = CASES[case_name]
    assert case.model is not None
    component = case.op.removeprefix("model/")
    checkpoint = open_checkpoint(model_files(case.model, "ldm"))
    m, params = load(checkpoint, component, Arithmetic(PROFILES["float32"]))
    recorder = _Recorder()
    traced = _Traced(m.weights, m.arithmetic, taps=recorder)
    values = {name: tensor.values() for name, tensor in case.realize().items()}
    forward(component, traced, values, {**params, **case.params}, case_name)
    return recorder.steps


def units(steps: Iterable[Step]) -> list[Unit]:
    """Gather steps that follow each other in a block: the first name of a tap, with its number if it has one."""

    def block(step: Step) -> str:
        first = re.match(r"(decoder\.(?:up|mid)\.\w+(?:\.\d+)?|[^.]+(?:\.\d+(?=\.))?)", step.name)
        assert first is not None
        return first[1] if "." in step.name.removeprefix("decoder.") else "about"

    gathered = [(name, tuple(group)) for name, group in groupby(steps, block)]
    together = lambda group: ", ".join(step.name for step in group)
    return [
        Unit(together(group) if name == "about" or len(group) == 1 else name, group) for name, group in gathered
    ]


def runs(found: list[Unit]) -> list[tuple[Unit, Unit]]:
    """Join neighbours of one kind that compute the same. -> (the first, the last)"""
    kind = lambda unit: (re.sub(r"\.\d+", "", unit.name), unit.signature)
    return [(group[0], group[-1]) for group in (list(same) for _, same in groupby(found, kind))]


def published(case_name: str, unit: str) -> int:
    """Count the blocks of a unit's kind in the published model's tensors; 0 if the kind is not numbered."""
    case = CASES[case_name]
    assert case.model is not None
    numbered = re.fullmatch(r"(.*\.)?(\w+)\.\d+", unit)
    if numbered is None:
        return 0
    part = COMPONENTS[case.op.removeprefix("model/")].part or ""
    recipes = {name: recipe for family in FAMILIES.values() for name, recipe in family.recipes.items()}
    names = NETWORKS[part].shapes(recipes[case.model.family].parts[part].full)
    base = re.escape(unit.rpartition(".")[0])
    return len({found[1] for name in names if (found := re.match(rf"{base}\.(\d+)\.", name))})


def draw(title: str, case_name: str, steps: list[Step]) -> str:
    """The model as SVG: its blocks from top to bottom, and beside them the steps of each kind of block."""
    overview = runs(units(steps))
    panels: dict[tuple[str, ...], Unit] = {}
    for unit, _ in overview:
        if len(unit.steps) > 3:
            panels.setdefault(unit.signature, unit)
    boxes, y = [], 34
    bases = [unit.name.rpartition(".")[0] for unit, _ in overview]
    for unit, last in overview:
        alike = len(unit.steps) > 3 and bases.count(unit.name.rpartition(".")[0]) == 1
        label = _label(unit, last, published(case_name, unit.name) if alike else 0)
        below = f"{counted(len(unit.steps), 'operation')}, {_shape(unit.steps[-1].shape)}"
        boxes.append(_box(10, y, _WIDTH, 40, "block", label, below))
        boxes.append(f'<path class="flow" d="M{10 + _WIDTH / 2} {y + 40}v{_GAP}"/>')
        y += 40 + _GAP
    boxes.pop()
    height, columns = y, []
    top = 34
    for unit in list(panels.values())[:6]:
        columns += _panel(unit, 10 + _WIDTH + 40, top)
        top += 46 + len(unit.steps) * _ROW + 20
    width, height = 10 + _WIDTH + 40 + _PANEL + 10, max(height, top)
    words = html.escape(
        f"{title}, from top to bottom: {', '.join(_label(first, last, 0) for first, last in overview)}"
    )
    return (
        f'<svg class="diagram" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{words}">'
        f'<text class="head" x="10" y="20">the model</text>'
        f'<text class="head" x="{10 + _WIDTH + 40}" y="20">its kinds of block, an operation a line</text>'
        f"{''.join(boxes)}{''.join(columns)}</svg>"
    )


def _label(first: Unit, last: Unit, full: int) -> str:
    """full: how many the published model has; 0: not told"""
    name = first.name if first is last else f"{first.name}..{last.name.rpartition('.')[2]}"
    return f"{name} (published: {full})" if full else name


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _box(x: float, y: float, width: float, height: float, kind: str, label: str, below: str) -> str:
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'
        f'<text x="{x + 10}" y="{y + 17}">{html.escape(label)}</text>'
        f'<text class="shape" x="{x + 10}" y="{y + 33}">{html.escape(below)}</text>'
    )


def _panel(unit: Unit, x: float, y: float) -> list[str]:
    drawn = [f'<text class="head" x="{x}" y="{y + 14}">{html.escape(unit.name)}</text>']
    for i, step in enumerate(unit.steps):
        top = y + 24 + i * _ROW
        kind = next((kind for kind, ops in _KINDS.items() if step.op in ops), "other")
        name = step.name.removeprefix(f"{unit.name}.")
        drawn.append(
            f'<rect class="{kind}" x="{x}" y="{top}" width="{_PANEL}" height="{_ROW - 3}" rx="3"/>'
            f'<text class="small" x="{x + 8}" y="{top + 14}">{html.escape(_short(name))}</text>'
            f'<text class="small op" x="{x + 232}" y="{top + 14}">{html.escape(step.op)}</text>'
            f'<text class="small shape" text-anchor="end" x="{x + _PANEL - 8}" y="{top + 14}">'
            f"{_shape(step.shape)}</text>"
        )
    return drawn


def _short(name: str, room: int = 34) -> str:
    return name if len(name) <= room else "..." + name[-room + 3 :]


def pages() -> dict[str, str]:
    """A page for each model, and their list."""
    made, entries = {}, []
    for page, title, case_name, code in MODELS:
        steps = trace(case_name)
        made[f"learn/diagrams/{page}.md"] = (
            f"# {title}\n\nDrawn from a run of `{case_name}` by a tiny copy of the model: the names are those of "
            f"its weights, the shapes those of this run. In all {len(steps)} operations. The same as text: "
            f"[{code}](../../{code_pages.page_of(code)}).\n\nBlue: products with weights; green: norms; red: "
            "attention; violet: positions and times.\n\n"
            f'```{{raw}} html\n<div class="scroll" tabindex="0">{draw(title, case_name, steps)}</div>\n```\n'
        )
        entries.append(f"{title} <{page}>")
    listed = "\n".join(entries)
    made["learn/diagrams/index.md"] = (
        "# Block diagrams\n\nNobody drew these: each box is an operation that ran, in the order of computation.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
    return made
