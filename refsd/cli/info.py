"""refsd info: identify a checkpoint."""

from pathlib import Path
from typing import Annotated, Any

import typer

from refsd.cli.parts import Html


def info(
    file: Annotated[
        Path,
        typer.Argument(help="A .safetensors or .gguf file, an index of shards, a diffusers folder, recipe:FAMILY."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    values: Annotated[
        bool,
        typer.Option(
            "--values", help="Read every value of a file above 256 MiB, not only a sample of each tensor."
        ),
    ] = False,
    html: Html = None,
) -> None:
    """Identify a file and say whether it is healthy; the culprit comes in the first line.

    Family, components, types and sizes. Tensors that are transposed, swapped, renamed, missing or foreign, by what
    the others say. NaN, zeros, lost scales, copied and exchanged layers, by the values: of a file above 256 MiB,
    unless it is an adapter, by a sample of each tensor's. Of an adapter: kind, ranks, alpha over rank, trainer,
    layers. Two tensors of one shape that are exchanged, a square one that is transposed, and a wrong scale show
    beside a good copy alone: `refsd diff GOOD FILE`.

    Exit code 0: nothing wrong. 1: something odd that somebody may have meant so. 2: the file cannot be right, or
    cannot be read. Storage that refsd recognises but cannot expand is named, and is nothing wrong.
    """
    import json

    from refsd.cli.bar import bar
    from refsd.diagnosis.health import examine
    from refsd.diagnosis.values import zero_shares
    from refsd.weights.checkpoint import survey
    from refsd.weights.describe import describe, list_tensors
    from refsd.weights.model_files import model_path

    checkpoint = survey(model_path(file))
    found = describe(checkpoint)
    with bar("reading values", found["bytes"]) as advance:
        health = examine(checkpoint, values, advance)
    found["path"] = str(file) if str(file).startswith("recipe:") else found["path"]  # not a folder that goes again
    found["verdict"] = health.verdict
    found["findings"] = [finding._asdict() for finding in health.findings]
    found["values"] = "all" if health.whole else "a sample of each tensor"
    found["zeros"] = {} if checkpoint.results is not None else zero_shares(health.read)
    if health.card is not None:
        of = health.card
        found["adapter"] |= {"trainer": of.trainer, "ranks": of.ranks, "scales": of.scales}
    if tensors:
        found["tensor_list"] = list_tensors(checkpoint)
    if html is not None:
        from refsd.diagnosis.html_pages import info_page, save

        save(html, info_page(found, health))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(found)
    raise typer.Exit(_CODES[health.verdict])


_CODES = {"healthy": 0, "odd": 1, "broken": 2}


def _print(found: dict[str, Any]) -> None:
    """Print the findings as text. Names come from the file, so they are escaped and never parsed as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from refsd.numerics.printable import printable

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for finding in found["findings"]:
        console.print(Text(printable(finding["text"]), "bold red" if finding["sure"] else "bold yellow"))
    console.print(Text(printable(found["path"]), "bold"))
    console.print(printable(f"  {_headline(found)}"))
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=True)
    for heading in ("component", "tensors", "parameters", "bytes", "types"):
        right = heading in ("tensors", "parameters", "bytes")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    most = 3 if found["adapter"] else 20
    rows = found["components"] or dict(list(found["prefixes"].items())[:most])
    for name, part in rows.items():
        table.add_row(*(Text(printable(cell)) for cell in _row(name, part)))
    if not found["components"] and len(found["prefixes"]) > most:
        table.add_row(Text(f"... {len(found['prefixes']) - most} more"))
    console.print(table)
    for word, line in _remarks(found):
        console.print(Text.assemble(("  " + f"{word} ".ljust(12), "dim"), printable(line)))
    for tensor in found.get("tensor_list", ()):
        line = f"  {_quoted(tensor['name'])} {tensor['type']} {tensor['shape']} {_our_name(tensor)}"
        console.print(printable(line.rstrip()))


def _headline(found: dict[str, Any]) -> str:
    from refsd.golden.wording import counted

    kinds = " and ".join(found["format"])
    volume = f"{found['tensors']} tensors, {_count(found['parameters'])} parameters, {_bytes(found['bytes'])}"
    if found["runs"]:
        layout = {"ldm": "the original layout", "mixed": "mixed layouts"}.get(found["layout"])
        own = "" if found["layout"].endswith("s") else "s"
        layout = layout or f"{found['layout']}'{own} layout"
        return f"{found['title']} in {layout}, {kinds}; {volume}"
    if found["adapter"]:
        alike = found["adapter"]["resized"] and not found["adapter"]["unknown"]
        does = "runs with --lora" if found["adapter"]["runs"] else "does not run"
        does = "runs with --lora where the model has these sizes" if alike else does
        return f"{found['family']}, which refsd {does}, {kinds}; {volume}"
    if found["inversion"]:
        count = counted(found["inversion"]["vectors"], "vector")
        return f"{found['family']}, {count}, which txt2img reads with --embd-dir, {kinds}; {volume}"
    if found["results"]:
        return f"{found['results']}, {kinds}; {volume}; by prefix:"
    if found["family"]:
        return f"{found['family']}, which refsd does not run, {kinds}; {volume}"
    return f"no model that refsd knows, {kinds}; {volume}; by prefix:"


def _row(name: str, part: dict[str, Any]) -> list[str]:
    types = ", ".join(f"{kind} x{of['tensors']}" for kind, of in part["types"].items())
    return [
        _quoted(name) if "size" not in part else name,
        str(part["tensors"]),
        _count(part["parameters"]),
        _bytes(part["bytes"]),
        types,
    ]


def _remarks(found: dict[str, Any]):
    from refsd.golden.wording import counted
    from refsd.kernels.quant import BLOCK_TYPES
    from refsd.numerics.tensor import SCALAR_TYPES

    for name, part in found["components"].items():
        size = {**part["size"], **part["config"]}
        yield name, ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in size.items())
    if found["predicts"]:
        yield "predicts", found["predicts"]
    if found["latents"]:
        yield "latents", found["latents"]
    if found["adapter"]:
        of = found["adapter"]
        yield "trainer", of["trainer"] or "unknown: neither the metadata nor the names tell"
        for word, numbers in (("rank", of["ranks"]), ("alpha/rank", of["scales"])):
            if not numbers and of["ranks"] and word == "alpha/rank":
                yield word, "no layer has an alpha: the change counts 1"
            if numbers:
                yield word, _few([f"{n:g} x{layers}" for n, layers in numbers.items()], 6).partition(": ")[2]
    if found["adapter"] and found["adapter"]["models"]:
        yield "layers", f"{found['adapter']['layers']}, by their names and shapes"
        if found["adapter"]["unknown"]:
            yield "unknown", _few([_quoted(name) for name in found["adapter"]["unknown"]])
    if found["adapter"] and found["adapter"]["embeddings"]:
        yield "embeddings", _few([_quoted(name) for name in found["adapter"]["embeddings"]])
    for kind in ("missing", "unused", "misshapen"):
        names = [name for part in found["components"].values() for name in part[kind]]
        if names:
            yield kind, _few(names)
    if found["unknown"] and found["runs"]:
        yield "unknown", _few([_quoted(name) for name in found["unknown"]])
    if found["ignored"]:
        yield "ignored", _few([_quoted(name) for name in found["ignored"]], 4)
    if found["unreadable_types"]:
        readable = ", ".join([*SCALAR_TYPES, *BLOCK_TYPES])
        yield "types", f"refsd cannot read {', '.join(found['unreadable_types'])}; it reads {readable}"
    for storage, names in found["expanded"].items():
        yield "storage", f"{counted(len(names), 'tensor')} {storage}"
    for storage, names in found["unexpanded"].items():
        yield (
            "storage",
            f"{counted(len(names), 'tensor')} {storage}: storage that refsd cannot expand; not read",
        )
    if "clip" in found["components"]:
        yield (
            "tokenizer",
            found["tokenizer"] or "none found: give one with --vocab, or install instant-clip-tokenizer",
        )
    for key, value in list(found["metadata"].items())[:8]:
        yield "says", f"{_quoted(key)}: {_quoted(value)}"
    if found["verdict"] == "healthy":
        more = "" if found["values"] == "all" else "; --values reads all"
        yield "values", f"nothing wrong in {found['values']}{more}"
        yield "", "exchanged or transposed weights of one shape show beside a good copy only: refsd diff GOOD THIS"
    if found["zeros"]:
        shares = [f"{_quoted(name)} ({100 * share:.0f} %)" for name, share in found["zeros"].items()]
        yield "zeros", f"half or more is exactly zero in {_few(shares)}"


def _few(names: list[str], most: int = 10) -> str:
    more = f", ... {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)}: {', '.join(names[:most])}{more}"


def _quoted(name: str) -> str:
    from refsd.numerics.printable import printable

    return printable(name, 120)


def _our_name(tensor: dict[str, Any]) -> str:
    return f"-> {tensor['is']}" if tensor["is"] else ""


def _plain(value) -> str:
    return ":".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _count(n: int) -> str:
    return next(
        (f"{n / size:.2f}{unit}" for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if n >= size), str(n)
    )


def _bytes(n: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} B"
