"""refsd noise: draw an engine's initial noise."""

import re
from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.sigmas import Like


def noise(
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The picture's seed.")] = 42,
    like: Annotated[Like, typer.Option(help="The engine whose noise to draw.")] = Like.sdcpp,
    shape: Annotated[str, typer.Option(help="Shape of the latents: N x C x H x W.")] = "1x4x64x64",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .safetensors, .npz or .npy file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw the initial noise of an engine: print the first numbers and a hash, or write it to a file.

    The random integers are exact. The last bits of the normal numbers depend on the log and cos of an engine, so
    use a file if two engines must start from identical bits.
    """
    import hashlib

    import numpy as np

    from refsd.conventions import CARDS
    from refsd.numerics.errors import BadInput

    if not re.fullmatch(r"\d{1,4}x\d{1,4}x\d{1,5}x\d{1,5}", shape):
        raise BadInput(f"--shape {shape}: expected four sizes, as 1x4x64x64")
    size = tuple(map(int, shape.split("x")))
    if not 0 < np.prod(size, dtype=object) <= 1 << 26:
        raise BadInput(f"--shape {shape}: expected 1 to 2^26 elements")
    card = CARDS[like.value]
    y = np.ascontiguousarray(card.noise(seed, size), np.float32)
    digest = hashlib.sha256(y.tobytes()).hexdigest()
    first = [float(v) for v in y.reshape(-1)[:6]]
    if output:
        from refsd.files.tensor_files import write_arrays

        write_arrays(output, {"noise": y}, {"tool": "refsd noise", "seed": str(seed), "like": like.value})
    if json:
        import json as encoder

        typer.echo(
            encoder.dumps({"like": like.value, "seed": seed, "shape": size, "first": first, "sha256": digest})
        )
        return
    typer.echo(f"{like.value}: {card.rng}, seed {seed}, {shape}")
    typer.echo("first   " + "  ".join(f"{v:.7f}" for v in first))
    typer.echo(f"sha256  {digest}")
