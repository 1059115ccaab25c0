"""refsd info: identify a checkpoint."""

from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    app.command()(info)


def info(
    file: Annotated[
        Path, typer.Argument(help="A .safetensors or .gguf file, an index of shards, a diffusers folder.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    check_values: Annotated[
        bool, typer.Option("--check-values", help="Read every value and report NaN and infinity.")
    ] = False,
) -> None:
    """Identify a checkpoint: family, components, types and sizes; list missing and unknown tensors.

    Reads headers only. Exit code 0: complete. 1: tensors are missing, unused, of a wrong shape or not finite.
    2: the file cannot be read.
    """
    import json

    from refsd.weights.checkpoint import survey
    from refsd.weights.describe import describe, list_tensors

    checkpoint = survey(file)
    found = describe(checkpoint)
    if tensors:
        found["tensor_list"] = list_tensors(checkpoint)
    if check_values:
        found["bad_values"] = _check(checkpoint, found["bytes"])
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(found)
    raise typer.Exit(1 if _is_wrong(found) else 0)


def _check(checkpoint, total: int) -> list[dict[str, Any]]:
    from refsd.cli.bar import bar
    from refsd.weights.describe import bad_values

    with bar("reading values", total) as advance:
        return bad_values(checkpoint, advance)


def _is_wrong(found: dict[str, Any]) -> bool:
    lists = [part[kind] for part in found["components"].values() for kind in ("missing", "unused", "misshapen")]
    unknown = found["unknown"] if found["runs"] else []
    return any(lists) or bool(unknown) or bool(found.get("bad_values"))


def _print(found: dict[str, Any]) -> None:
    """Print the findings as text. Names come from the file, so they are escaped and never parsed as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from refsd.numerics.printable import printable

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.print(Text(printable(found["path"]), "bold"))
    console.print(printable(f"  {_headline(found)}"))
    table = Table(box=None, padding=(0, 2), header_style="dim", pad_edge=True)
    for heading in ("component", "tensors", "parameters", "bytes", "types"):
        right = heading in ("tensors", "parameters", "bytes")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    rows = found["components"] or dict(list(found["prefixes"].items())[:20])
    for name, part in rows.items():
        table.add_row(*(Text(printable(cell)) for cell in _row(name, part)))
    if not found["components"] and len(found["prefixes"]) > 20:
        table.add_row(Text(f"... {len(found['prefixes']) - 20} more"))
    console.print(table)
    for word, line in _remarks(found):
        console.print(Text.assemble(("  " + word.ljust(12), "dim"), printable(line)))
    for tensor in found.get("tensor_list", ()):
        line = f"  {_quoted(tensor['name'])} {tensor['type']} {tensor['shape']} {_our_name(tensor)}"
        console.print(printable(line.rstrip()))


def _headline(found: dict[str, Any]) -> str:
    kinds = " and ".join(found["format"])
    volume = f"{found['tensors']} tensors, {_count(found['parameters'])} parameters, {_bytes(found['bytes'])}"
    if found["runs"]:
        layout = {"ldm": "the original layout", "mixed": "mixed layouts"}.get(found["layout"])
        layout = layout or f"{found['layout']}' layout".replace("l' ", "l's ")
        return f"{found['title']} in {layout}, {kinds}; {volume}"
    if found["adapter"]:
        does = "runs with --lora" if found["adapter"]["runs"] else "does not run"
        return f"{found['family']}, which refsd {does}, {kinds}; {volume}"
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
    from refsd.kernels.quant import BLOCK_TYPES
    from refsd.numerics.tensor import SCALAR_TYPES

    for name, part in found["components"].items():
        size = {**part["size"], **part["config"]}
        yield name, ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in size.items())
    if found["latents"]:
        yield "latents", found["latents"]
    if found["adapter"] and found["adapter"]["models"]:
        yield "layers", f"{found['adapter']['layers']}, by their names and shapes"
        if found["adapter"]["unknown"]:
            yield "unknown", _few([_quoted(name) for name in found["adapter"]["unknown"]])
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
    if "clip" in found["components"]:
        yield (
            "tokenizer",
            found["tokenizer"] or "none found: give one with --vocab, or install instant-clip-tokenizer",
        )
    for key, value in list(found["metadata"].items())[:8]:
        yield "says", f"{_quoted(key)}: {_quoted(value)}"
    if "bad_values" in found:
        bad = [
            f"{_quoted(of['name'])} ({of['not_finite'] or 'unreadable ' + of['type']})"
            for of in found["bad_values"]
        ]
        yield "values", f"NaN or infinite: {_few(bad)}" if bad else "all finite"


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
