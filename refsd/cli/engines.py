"""refsd engines: list the engines. Also: find engines by their names on the command line."""

from pathlib import Path

import typer

_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    app.command()(engines)


def engines(json: bool = _JSON) -> None:
    """List the engines: their versions and devices, and how to get those that are missing.

    The first column is what `refsd conform` takes. ENGINE@DEVICE computes every node on that device, or fails: ggml
    calls its devices Vulkan0, CUDA0, Metal or BLAS, torch calls them cuda, cuda:1, mps or xpu.
    """
    import msgspec

    from refsd.engines import registry
    from refsd.engines.inventory import inventory
    from refsd.progress.steps import steps
    from refsd.weights.model_files import model_files

    with steps("engines", len(registry.modules())) as advance:
        found = inventory(model_files, advance)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    width = max(len(one.argument) for one in found)
    for one in found:
        there = ", ".join(filter(None, (one.version, f"on {one.device}")))
        typer.echo(f"{one.argument:{width}}  {f'missing: {one.missing}' if one.missing else there}")


def one_engine(argument: str, **options):
    """Find a single engine: "torch" is the first engine of torch, "torch-bf16" the engine of that name.

    options: for the engine's `find`: timeout, seconds that an answer may take

    Raises BadInput if it is missing.
    """
    from refsd.engines import registry
    from refsd.engines.chosen import reference_engine
    from refsd.golden.input_file import note_input
    from refsd.numerics.errors import BadInput
    from refsd.weights.model_files import model_files

    given = registry.Argument.of(argument)
    if given.name == "refsd":
        return reference_engine(given.path or "float32")
    if given.path:
        note_input(Path(given.path))
    looked = registry.find(argument, model_files=model_files, **options)
    found = [one.engine for one in looked if one.engine is not None]
    if not found:
        raise BadInput(f"{argument} cannot be judged: {'; '.join(one.why_not for one in looked)}")
    return found[0]
