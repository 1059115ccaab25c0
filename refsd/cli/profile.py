"""refsd profile: how an engine computes, told from its answers."""

from typing import Annotated

import typer

_ENGINE = "An engine as `refsd conform` takes it: torch, torch-bf16, ggml:LIBRARY, exec:PROGRAM, refsd:PROFILE, ..."
_OPS = "Operations to ask about: linear,conv2d,attention. May be repeated."
_SECONDS = 60.0


def profile(
    engine: Annotated[str, typer.Argument(help=_ENGINE)],
    ops: Annotated[list[str] | None, typer.Option(help=_OPS, show_default="all")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that an answer may take.")] = _SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Tell an engine's numerics by designed inputs, without believing what it declares.

    Each input holds one bit that a narrower type loses: 1 + 2^-k for the types of factors and results,
    2^k + 1 - 2^k at chosen places for the type and order of a sum, a large value in a block for 8-bit activations,
    a large pixel among small ones for Winograd. The profiles of refsd answer the same questions; the nearest is
    named, with the fields in which the engine differs, ready for an exec engine's description.

    Exit code 0: nothing contradicts what the engine declares. 1: something does, or the engine failed at a
    question. 2: bad usage or bad input.
    """
    from refsd.engines.chosen import one_engine
    from refsd.golden.wording import did_you_mean
    from refsd.numerics.errors import BadInput
    from refsd.numerics.profiles import PROFILES
    from refsd.profiling.pages import OPS, PROBES
    from refsd.profiling.profile import ask_all
    from refsd.profiling.report import as_lines, conclude
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps

    chosen = [op for op in ",".join(ops or ()).split(",") if op]
    for op in chosen:
        if op not in OPS:
            raise BadInput(f"--ops {op}: nothing to ask{did_you_mean(op, OPS)}; there are {', '.join(OPS)}")
    judged = one_engine(engine, timeout=timeout)
    probes = [probe for probe in PROBES if not chosen or probe.op in chosen]
    with compile_progress(), steps("profile", len(probes) + len(PROFILES)) as advance:
        answers = ask_all(judged, probes, advance)
        report = conclude(judged, answers, probes, advance)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
    else:
        for line in as_lines(report):
            typer.echo(line)
    if not report.agrees:
        raise typer.Exit(1)
