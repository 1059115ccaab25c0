"""Pages to look things up in, made from the code: commands, cases, models, types."""

import os
import re
from collections.abc import Mapping
from itertools import groupby

import typer
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.components import COMPONENTS
from refsd.families import FAMILIES, VARIANTS
from refsd.golden.case import Case
from refsd.kernels.quant import BLOCK_TYPES
from refsd.models.catalogue import NETWORKS


def pages() -> dict[str, str]:
    return {
        "lookup/cli.md": cli(),
        "lookup/cases.md": cases(),
        "lookup/models.md": models(),
        "lookup/types.md": types(),
    }


def cli() -> str:
    """Every command's --help, as it is printed."""
    os.environ.update(TERMINAL_WIDTH="80", COLUMNS="80", NO_COLOR="1")
    parts = ["# Commands\n\nWhat `--help` prints, of each command.\n"]

    def add(command, words: list[str]) -> None:
        printed = CliRunner().invoke(app, [*words, "--help"]).output
        text = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
        heading = " ".join(["refsd", *words])
        parts.append(f"\n## {heading}\n\n```{{code-block}} text\n{text}\n```\n")
        for name, below in getattr(command, "commands", {}).items():
            add(below, [*words, name])

    add(typer.main.get_command(app), [])
    return "".join(parts)


def cases() -> str:
    parts = [
        f"# Cases\n\nAll {len(CASES)} cases, by operation. Inputs are made from [recipes](../golden/README.md): "
        "shape, type, data. `refsd golden show CASE` tells more, `refsd golden show OPERATION --mutants` the known "
        "bugs that each finds.\n"
    ]
    for op, group in groupby(sorted(CASES.values(), key=lambda case: case.op), key=lambda case: case.op):
        rows = "\n".join(f"| `{case.name}` | {_inputs(case)} | {_params(case.params)} |" for case in group)
        parts.append(f"\n## {op}\n\n| case | inputs | parameters |\n|---|---|---|\n{rows}\n")
    return "".join(parts)


def _inputs(case: Case) -> str:
    listed = [f"{name} {'x'.join(map(str, r.shape))} {r.type} {r.data}" for name, r in case.inputs.items()]
    if case.model is not None:
        size = "tiny" if case.model.tiny else "full size"
        listed.append(f"{case.model.family} {case.model.type}, {size}")
    return _cell("; ".join(listed))


def _params(params: Mapping) -> str:
    text = ", ".join(f"{name} = {value!r}" for name, value in params.items())
    return _cell(text if len(text) < 160 else text[:160] + " ...")


def _cell(text: str) -> str:
    return re.sub(r"([\\`*_<>\[\]$#{}|~])", r"\\\1", text) or " "


def models() -> str:
    encoders = lambda variant: ", ".join(f"`{name}`" for name in variant.encoders)
    rows = "\n".join(
        f"| `{v.name}` | {_cell(v.title)} | {encoders(v)} | {'yes' if v.draws else 'no'} |"
        for v in VARIANTS.values()
    )
    parts = [
        f"# Models\n\n{len(VARIANTS)} variants of {len(FAMILIES)} families. The code of each network is a page of "
        "[Models](../code/models.md).\n\n## Variants\n\n"
        f"| variant | model | text encoders | `refsd txt2img` |\n|---|---|---|---|\n{rows}\n\n## Networks\n\n"
        "| component in a file | network | kind | layouts |\n|---|---|---|---|\n"
    ]
    for network in NETWORKS.values():
        layouts = dict.fromkeys(place.layout.name for place in network.places)
        if network.folder is not None:
            layouts[network.folder.layout.name] = None
        parts.append(f"| `{network.name}` | {_cell(network.title)} | {network.kind} | {', '.join(layouts)} |\n")
    parts.append("\n## Arguments\n\nWhat `refsd forward --component` takes and gives.\n\n")
    parts.append("| component | inputs | outputs |\n|---|---|---|\n")
    for name, component in COMPONENTS.items():
        inputs = ", ".join(f"`{argument}`" for argument in component.arguments)
        outputs = ", ".join(f"`{output}`" for output in component.outputs)
        parts.append(f"| `{name}` | {inputs} | {outputs} |\n")
    return "".join(parts)


def types() -> str:
    parts = [
        "# Block types\n\nThe formats of GGUF's blocks. Each name leads to the code that reads and writes it; "
        "[three of them](../learn/block.md) can be taken apart byte by byte.\n\n"
        "| type | number in a file | weights | bytes | bits a weight | importance matrix |\n"
        "|---|---|---|---|---|---|\n"
    ]
    for name, type in BLOCK_TYPES.items():
        module = type.dequantize.__module__.rpartition(".")[2]
        bits = 8 * type.bytes / type.block
        parts.append(
            f"| [`{name}`](../code/kernels/quant/{module}.py.md) | {type.ggml_id} | {type.block} | {type.bytes} "
            f"| {bits:.4g} | {type.importance.value} |\n"
        )
    return "".join(parts)
