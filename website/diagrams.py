"""Block diagrams of models, from the data flow of a run: the whole model, and each kind of its blocks.

A tiny copy of the model answers one of refsd's own cases. Neighbouring blocks that are wired alike are one box;
how many of them the published model has is counted in the shapes of its tensors.
"""

import math
import re
from itertools import groupby
from typing import NamedTuple

import code_pages
from drawing import Arrow, Node, draw

from refsd.cases import CASES
from refsd.components import COMPONENTS
from refsd.components.data_flow import Run, Step, trace
from refsd.families import FAMILIES
from refsd.golden.wording import counted
from refsd.models.catalogue import NETWORKS

# Page, heading, a case that runs the model, and the file of its code.
MODELS = (
    ("unet", "UNet of Stable Diffusion 1", "sd15/unet/between", "refsd/models/unet/__init__.py"),
    ("vae", "Decoder of the autoencoder", "sd15/vae-decoder/wide", "refsd/models/vae/__init__.py"),
    ("mmdit", "MMDiT of Stable Diffusion 3.5", "sd35-large/mmdit/last-step", "refsd/models/mmdit/__init__.py"),
    ("flux", "FLUX.1", "flux-dev/flux/between", "refsd/models/flux/__init__.py"),
    ("zimage", "Z-Image", "zimage/zimage/whole", "refsd/models/zimage/__init__.py"),
    ("qwen_image", "Qwen-Image", "qwen-image/qwen-image/first-step", "refsd/models/qwen_image/__init__.py"),
    ("krea2", "Krea 2", "krea2/krea2/whole", "refsd/models/krea2/__init__.py"),
    ("qwen_image21", "Qwen-Image 2.1", "qwen-image21/qwen-image21/whole", "refsd/models/qwen_image21/__init__.py"),
)
OF_CODE = {code: f"learn/diagrams/{page}.md" for page, _, _, code in MODELS}
_KINDS = {
    "product": ("linear", "conv2d", "embedding", "text_projection"),
    "norm": ("group_norm", "layer_norm", "rms_norm", "rms_norm_apart", "l2_norm", "adaptive_layer_norm"),
    "attention": ("attention",),
    "position": ("rope", "rope_halves", "timestep_embedding"),
    "join": ("add", "gated_add", "modulate", "multiply"),
}
_MODULATION = ("shift", "scale", "gate")  # parameters that enter from the side
_LEAST = 4  # operations of a block that has a diagram of its own


class Block(NamedTuple):
    """Steps that follow each other in a block at the top of the model's names. members: numbers of steps"""

    name: str
    members: tuple[int, ...]


def blocks(run: Run) -> list[Block]:
    """Gather operations by the first names of their tap, up to a number.

    An operation without weights at the top of the model joins the block whose result alone it takes.
    """
    found: list[Block] = []
    for i, step in enumerate(run.steps):
        if step.op:
            name = _block_of(step.name)
            follows = found and name == step.op and {source for _, source in step.takes} <= {found[-1].members[-1]}
            if found and (found[-1].name == name or follows):
                found[-1] = Block(found[-1].name, (*found[-1].members, i))
            else:
                found.append(Block(name, (i,)))
    return found


def _block_of(name: str) -> str:
    first = re.match(r"(?:[^.]+\.)+?\d+(?=\.)|(?:decoder\.)?[^.]+", name)
    assert first is not None
    return first[0]


class Part(NamedTuple):
    """Neighbouring blocks that are wired alike. members: numbers of all their steps"""

    first: Block
    last: Block
    members: tuple[int, ...]


def signature(run: Run, block: Block) -> tuple:
    """Return the wiring inside a block: each operation, and which of the block's own results it takes."""
    place = {number: i for i, number in enumerate(block.members)}
    return tuple(
        (run.steps[i].op, *sorted((one, place[j]) for one, j in run.steps[i].takes if j in place))
        for i in block.members
    )


def parts(run: Run) -> list[Part]:
    """Join neighbours of one kind that are wired alike."""
    kind = lambda block: (re.sub(r"\.\d+", "", block.name), signature(run, block))
    groups = [list(same) for _, same in groupby(blocks(run), kind)]
    return [Part(group[0], group[-1], tuple(i for one in group for i in one.members)) for group in groups]


def kinds(run: Run) -> dict[tuple, Block]:
    """Return the first block of each wiring that is large enough for a diagram of its own."""
    found: dict[tuple, Block] = {}
    for part in parts(run):
        if len(part.first.members) >= _LEAST:
            found.setdefault(signature(run, part.first), part.first)
    return found


def published(case_name: str, block: str) -> int:
    """Count the blocks of this kind in the published model's tensors; 0 if the kind is not numbered."""
    case = CASES[case_name]
    assert case.model is not None
    if re.fullmatch(r".+\.\d+", block) is None:
        return 0
    part = COMPONENTS[case.op.removeprefix("model/")].part or ""
    recipes = {name: recipe for family in FAMILIES.values() for name, recipe in family.recipes.items()}
    names = NETWORKS[part].shapes(recipes[case.model.family].parts[part].full)
    base = re.escape(block.rpartition(".")[0])
    return len({found[1] for name in names if (found := re.match(rf"{base}\.(\d+)\.", name))})


def whole(run: Run, case_name: str) -> tuple[list[Node], list[Arrow]]:
    """The model: its inputs, its blocks and its output. A picture's levels are lanes."""
    found, drawn_as = parts(run), kinds(run)
    owner = {i: n for n, part in enumerate(found) for i in part.members}
    inputs = [i for i, step in enumerate(run.steps) if not step.op]
    names = [part.first.name.rpartition(".")[0] for part in found]
    widest = max((run.steps[part.members[-1]].shape[-1] for part in found if _picture(run, part)), default=0)
    nodes = [
        Node(run.steps[i].name, "", "input", _shape(run.steps[i].shape), lane=None if widest else lane)
        for lane, i in enumerate(inputs)
    ]
    for name, part in zip(names, found, strict=True):
        last = run.steps[part.members[-1]]
        alone = len(part.first.members) >= _LEAST and names.count(name) == 1
        full = published(case_name, part.first.name) if alone else 0
        below = f"published: {full}" if full else counted(len(part.first.members), "operation")
        lane = (widest // last.shape[-1]).bit_length() - 1 if _picture(run, part) else None
        drawn = drawn_as.get(signature(run, part.first))
        link = f"#{_id(drawn)}" if drawn else _link_of(run.steps[part.first.members[0]])
        shapes = dict.fromkeys(_shape(run.steps[i].shape) for i in _given(run, part))
        nodes.append(Node(_label(part), below, "block", ", ".join(shapes), link, lane))
    nodes.append(Node("out", "", "input", "", "", 0 if widest else None))
    number = lambda i: len(inputs) + owner[i] if i in owner else inputs.index(i)
    first = lambda part: all(
        j not in owner or j in part.members for i in part.members for _, j in run.steps[i].takes
    )
    pairs: dict[tuple[int, int], bool] = {}
    for i, step in enumerate(run.steps):
        for _, j in step.takes:
            if number(i) != number(j):
                side = _is_side(run, j, found[owner[i]]) or (j not in owner and not first(found[owner[i]]))
                pairs.setdefault((number(j), number(i)), side)
    arrows = [Arrow(source, target, side) for (source, target), side in pairs.items()]
    arrows += [Arrow(source, len(nodes) - 1) for source in dict.fromkeys(number(i) for i in run.outputs)]
    return nodes, arrows


def inside(run: Run, block: Block) -> tuple[list[Node], list[Arrow]]:
    """A block: what it is given, by the names of its code, its operations, and what it gives.

    An array of another shape than the results that it is made of has a box of its own.
    """
    own = set(block.members)
    given = list(dict.fromkeys(j for i in block.members for _, j in run.steps[i].takes if j not in own))
    passed, shapes = run.arguments.get(block.name, {}), run.shapes.get(block.name, {})
    named: dict[str, list[int]] = {}
    for j in given:
        named.setdefault(passed.get(j, run.steps[j].name), []).append(j)
    order = list(passed.values())
    named = dict(sorted(named.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    nodes: list[Node] = []
    arrows: dict[tuple[int, int], list[str]] = {}
    number: dict[int, int] = {}
    for name, sources in named.items():
        shape = _shape(shapes.get(name, run.steps[sources[0]].shape))
        if len(sources) > 1 and name in shapes:
            for j in sources:
                arrows[len(nodes), len(nodes) + len(sources) - sources.index(j)] = [""]
                nodes.append(Node(run.steps[j].name, "", "input", _shape(run.steps[j].shape)))
            nodes.append(Node("join", name, "moved", shape))
        else:
            nodes.append(Node(name, "", "input", shape))
        number |= dict.fromkeys(sources, len(nodes) - 1)
    moved: dict[int, int] = {}  # a view of an array -> its box
    for i in block.members:
        step = run.steps[i]
        enters: dict[str, list[int]] = {}
        for one, j in step.takes:
            enters.setdefault(one, []).append(number[j])
        for one, sources in enters.items():
            shape, view = next(((shape, view) for name, shape, view in step.given if name == one), ((), -1))
            sources = list(dict.fromkeys(sources))
            if shape and one not in _MODULATION and [nodes[n].shape for n in sources] != [_shape(shape)]:
                if view not in moved:
                    moved[view] = len(nodes)
                    arrows |= {(n, len(nodes)): [""] for n in sources}
                    nodes.append(Node(_move(nodes, sources, shape), "", "moved", _shape(shape)))
                sources = [moved[view]]
            enters[one] = sources
        number[i] = len(nodes)
        for one, sources in enters.items():
            for n in sources:
                arrows.setdefault((n, number[i]), []).append(one)
        kind = next((kind for kind, ops in _KINDS.items() if step.op in ops), "other")
        name = step.name.removeprefix(f"{block.name}.")
        below = "" if re.fullmatch(rf"(.*\.)?{step.op}(\.\d+)?", name) else re.sub(r"\.(weight|scale)$", "", name)
        nodes.append(Node(step.op, below, kind, _shape(step.shape), _link_of(step), layer=below.rpartition(".")[0]))
    drawn = [Arrow(*ends, names[0] in _MODULATION, ", ".join(names)) for ends, names in arrows.items()]
    for i in _given(run, block):
        drawn.append(Arrow(number[i], len(nodes)))
        nodes.append(Node("out", "", "input", ""))
    return nodes, drawn


def _move(nodes: list[Node], sources: list[int], shape: tuple[int, ...]) -> str:
    """Say what the model does with results before an operation takes them; shape: as it takes them"""
    if len(sources) > 1:
        return "join"
    size = math.prod(map(int, nodes[sources[0]].shape.split("\u00d7")))
    return "reshape" if math.prod(shape) == size else "cut" if math.prod(shape) < size else "repeat"


def _given(run: Run, part: Part | Block) -> list[int]:
    """Return the steps whose results a part or a block gives to others."""
    own = set(part.members)
    later = {j for i, step in enumerate(run.steps) if i not in own for _, j in step.takes} | set(run.outputs)
    return [i for i in part.members if i in later]


def _picture(run: Run, part: Part) -> bool:
    return (
        len(run.steps[part.members[-1]].shape) == 4 and run.steps[0].shape[-1] > 1 and len(run.steps[0].shape) == 4
    )


def _is_side(run: Run, source: int, target: Part) -> bool:
    """True if one vector for each item of the batch enters a block of many tokens or pixels."""
    vector = lambda shape: math.prod(shape[1:-1]) == 1
    return vector(run.steps[source].shape) and not vector(run.steps[target.members[-1]].shape)


def _id(block: Block) -> str:
    return block.name.replace(".", "-")


def _label(part: Part) -> str:
    if part.first is part.last:
        return part.first.name
    return f"{part.first.name}..{part.last.name.rpartition('.')[2]}"


def _shape(shape: tuple[int, ...]) -> str:
    return "\u00d7".join(map(str, shape))


def _link_of(step: Step) -> str:
    name, line = step.line
    return f"../../{code_pages.page_of(f'refsd/models/{name}')}.html#L{line}".replace(".md.html", ".html")


def figures(run: Run, case_name: str, title: str) -> list[str]:
    """The drawings of a model's page, as HTML."""
    nodes, arrows = whole(run, case_name)
    words = f"{title}: " + ", ".join(f"{nodes[a.source].label} to {nodes[a.target].label}" for a in arrows)
    inputs = sum(1 for step in run.steps if not step.op)
    drawn = [_figure("whole", "The model", draw(nodes, arrows, words, max(3, inputs)))]
    for kind, block in kinds(run).items():
        nodes, arrows = inside(run, block)
        svg = draw(nodes, arrows, f"{block.name}: {counted(len(kind), 'operation')}")
        drawn.append(_figure(_id(block), block.name, svg))
    return drawn


def _figure(id: str, title: str, svg: str) -> str:
    return f'<figure id="{id}" class="flowchart"><figcaption>{title}</figcaption>{svg}</figure>'


def pages() -> dict[str, str]:
    """A page for each model, and their list."""
    made, entries = {}, []
    for page, title, case_name, code in MODELS:
        run = trace(CASES[case_name])
        operations = sum(1 for step in run.steps if step.op)
        made[f"learn/diagrams/{page}.md"] = (
            f"# {title}\n\nDrawn from a run of `{case_name}` by a tiny copy of the model: an arrow leads from an "
            "operation to each that took its result. The names are those of the weights, the shapes those of this "
            f"run of {operations} operations. A click leads to "
            f"[the line of code](../../{code_pages.page_of(code)}).\n\n"
            "Blue: products with weights; green: norms; red: attention; violet: positions and times; yellow: "
            "sums and modulation. Without a colour: the model joins, cuts or reshapes results before an operation "
            "takes them. Dashed lines enter from the side: shift, scale and gate. Coloured lines skip.\n\n"
            f'```{{raw}} html\n<div class="flowcharts">{"".join(figures(run, case_name, title))}</div>\n```\n'
        )
        entries.append(f"{title} <{page}>")
    listed = "\n".join(entries)
    made["learn/diagrams/index.md"] = (
        "# Block diagrams\n\nNobody drew these: each box is an operation that ran, each arrow a result that "
        "another operation took.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
    return made
