"""refsd engines: list the engines."""

import typer

from refsd.cli.json_output import JSON


def engines(json: bool = JSON) -> None:
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
