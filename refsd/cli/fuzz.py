"""refsd fuzz: random cases of every operation, and of the models, that an engine has."""

from pathlib import Path
from typing import Any

import typer

_ENGINE = typer.Argument(
    metavar="ENGINE", help="torch, torch-bf16, ggml[:LIBRARY], exec:PROGRAM, gguf-py, refsd[:PROFILE], ..."
)
_MINUTES = typer.Option(10.0, "--minutes", min=0.0, help="Time for the cases.")
_COUNT = typer.Option(None, "--count", min=1, help="So many cases, whatever time they take.")
_SEED = typer.Option(1, "--seed", min=0, max=2**63 - 1, help="Another seed gives other cases.")
_OPS = typer.Option(
    ["*"],
    "--ops",
    help="Only operations that match this glob: '*norm*'; with 'model/*' tiny models. May be repeated.",
)
_ONLY = typer.Option(None, "--only", help="One case, by its name: fuzz/7/rope/0.")
_OUT = typer.Option(Path("refsd-fuzz"), "-o", "--out", help="Folder for the finds; one written before is replaced.")
_TIMEOUT = typer.Option(60.0, "--timeout", min=1.0, help="Seconds for one answer: longer is a hang.")
_JSON = typer.Option(False, "--json", help="Print JSON.")
# In the folder of a run, with its outcome.
OUTCOME = "fuzz.json"


def register(app: typer.Typer) -> None:
    app.command()(fuzz)


def fuzz(
    engine: str = _ENGINE,
    minutes: float = _MINUTES,
    count: int = _COUNT,
    seed: int = _SEED,
    ops: list[str] = _OPS,
    only: str = _ONLY,
    out: Path = _OUT,
    timeout: float = _TIMEOUT,
    json: bool = _JSON,
) -> None:
    """Ask an engine random cases of every operation that it has; reduce what it fails.

    Sizes at the limits of vectors and blocks, quiet, loud, cancelling and constant
    data, other parameters; torch also gets other memory layouts. Each case has a name
    from which it can be made again: --only NAME, `refsd shrink ENGINE NAME`. What the
    engine fails is reduced as `refsd shrink` does it, one find of each cause.
    --ops 'model/*' asks for models: every family's tiny one with other sides, batches,
    texts, storage types and data, judged tap by tap where the engine shows taps.
    --ops 'block/*' asks for models of one block (flux-double, unet-transformer, ...) with other
    widths, heads and tokens. A case that the engine refuses is no failure; a crash, and
    no answer in time, are finds. After Ctrl-C or SIGTERM the finds until then are
    written. docs/fuzz.md explains it.

    Exit code 0: nothing was found. 1: something was. 2: bad usage or bad input. 130: interrupted.
    """
    from refsd.cli.ending import INTERRUPTED, interruptible
    from refsd.cli.engines import one_engine
    from refsd.fuzzing import fuzz as fuzzing
    from refsd.fuzzing.asked import AskedEngine
    from refsd.golden.output_file import check_replaceable, replaced_folder
    from refsd.model_files import model_files, trim_model_files
    from refsd.numerics.errors import BadInput
    from refsd.progress import compile_progress
    from refsd.shrinking import folder
    from refsd.shrinking.failure import runner_of
    from refsd.step_progress import found_so_far

    asked = AskedEngine(one_engine(engine, timeout=timeout), engine, timeout)
    cases = _cases(asked, seed, ops, only, count, 60 * minutes)
    check_replaceable(out, OUTCOME)
    partial = ""
    with replaced_folder(out, OUTCOME) as part:

        def keep(shrunk, number: int) -> str:
            name = f"{number + 1:02}-{shrunk.case.op.replace('/', '-')}"
            folder.write(part / name, shrunk, asked, engine, model_files)
            return str(out / name)

        fuzzer = fuzzing.Fuzzer(asked, runner_of(model_files), keep)
        try:
            with compile_progress(), interruptible(), found_so_far("fuzz") as show:
                for case in cases:
                    find = fuzzer.try_case(case)
                    if find is not None and not json:
                        _print_find(find)
                    trim_model_files()
                    show(f"{sum(fuzzer.asked.values())} cases, {len(fuzzer.finds)} finds, {case.name}")
        except KeyboardInterrupt:
            partial = "interrupted"
        outcome = fuzzing.outcome(fuzzer, seed, partial)
        if only is not None and not outcome.asked:
            reasons = [*outcome.refused, "nothing can be judged in it"]
            raise BadInput(f"{only}: {asked.name} was not judged: {reasons[0]}")
        if outcome.finds:
            (part / OUTCOME).write_bytes(_encoded(outcome))
    _print(outcome, json)
    if partial:
        raise typer.Exit(INTERRUPTED)
    if outcome.finds:
        raise typer.Exit(1)


def _cases(asked, seed: int, ops: list[str], only: str | None, count: int | None, seconds: float) -> Any:
    """The cases to ask. Raises BadInput for a name or a glob that is none."""
    import fnmatch

    from refsd.fuzzing import fuzz as fuzzing
    from refsd.fuzzing.random_case import parse
    from refsd.golden.wording import did_you_mean
    from refsd.numerics.errors import BadInput

    if only is not None:
        found = parse(only)
        if found is None:
            raise BadInput(f"--only {only}: no name of a random case; expected fuzz/SEED/OPERATION/NUMBER")
        return [fuzzing.drawn_case(*found)]
    wanted: set[str] = set()
    for glob in ops:
        known = next(kind.names() for prefix, kind in fuzzing.KINDS.items() if glob.startswith(prefix))
        if not fnmatch.filter(known, glob):
            raise BadInput(f"--ops {glob}: no operation matches{did_you_mean(glob, known)}")
        wanted |= {*fnmatch.filter(known, glob)}
    known = [op for kind in reversed(fuzzing.KINDS.values()) for op in kind.names()]
    chosen = fuzzing.operations_of(asked, [op for op in known if op in wanted])
    if not chosen:
        raise BadInput(f"{asked.name} takes no case of these operations; `refsd fuzz` asks operations and models")
    return fuzzing.cases(seed, chosen, count, seconds)


def _encoded(outcome) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(outcome), indent=1) + b"\n"


def _print_find(find) -> None:
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in find.shapes.items())
    params = "".join(f", {name} = {value}" for name, value in find.params.items())
    typer.echo(f"{find.op}: {find.kind}: {find.title}")
    typer.echo(f"    {find.case} ({find.layout}); smallest: {shapes}{params}")
    typer.echo(f"    {find.reason}")


def _print(outcome, json: bool) -> None:
    from refsd.golden.wording import counted

    if json:
        typer.echo(_encoded(outcome).decode().rstrip())
        return
    cases, refused = sum(outcome.asked.values()), sum(outcome.refused.values())
    asked = f"{counted(cases, 'case')} of {counted(len(outcome.asked), 'operation')}"
    rest = f"; {refused} refused" + (f", {outcome.unjudged} without a verdict" if outcome.unjudged else "")
    end = f"; {outcome.partial}" if outcome.partial else ""
    took = f"in {outcome.seconds:.0f} s, seed {outcome.seed}"
    typer.echo(f"{outcome.engine} {outcome.version}: {asked} {took}{rest}{end}")
    if not outcome.finds:
        typer.echo("nothing found")
    for find in outcome.finds:
        typer.echo(f"{find.op}: {find.title} ({find.kind}, {counted(find.times, 'case')}): {find.folder}")
