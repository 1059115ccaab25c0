"""refsd fuzz: random cases of every operation, and of the models, that an engine has."""

from pathlib import Path
from typing import Any, NamedTuple

import typer

from refsd.cli.golden import DASK
from refsd.cli.json_output import JSON

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
_REASONS = 4  # of refusals, that the last line names
# In the folder of a run, with its outcome.
OUTCOME = "fuzz.json"


def fuzz(
    engine: str = _ENGINE,
    minutes: float = _MINUTES,
    count: int = _COUNT,
    seed: int = _SEED,
    ops: list[str] = _OPS,
    only: str = _ONLY,
    out: Path = _OUT,
    timeout: float = _TIMEOUT,
    dask: str = DASK,
    json: bool = JSON,
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
    written. docs/fuzz.md explains it. With --dask the workers of a cluster ask and
    reduce; --minutes is then the time to ask in.

    Exit code 0: nothing was found. 1: something was. 2: bad usage or bad input. 130: interrupted.
    """
    from refsd.cli.ending import INTERRUPTED
    from refsd.golden.output_file import check_replaceable, replaced_folder
    from refsd.numerics.errors import BadInput

    search = _in_this_process if dask is None else _on_cluster
    check_replaceable(out, OUTCOME)
    with replaced_folder(out, OUTCOME) as part:
        wanted = _Wanted(engine, timeout, seed, ops, only, count, 60 * minutes, not json)
        outcome = search(wanted, part, out, dask)
        if only is not None and not outcome.asked:
            reasons = [*outcome.refused, "nothing can be judged in it"]
            raise BadInput(f"{only}: {outcome.engine} was not judged: {reasons[0]}")
        if outcome.finds:
            (part / OUTCOME).write_bytes(_encoded(outcome))
    _print(outcome, json)
    if outcome.partial:
        raise typer.Exit(INTERRUPTED)
    if outcome.finds:
        raise typer.Exit(1)


class _Wanted(NamedTuple):
    """What the user asks for. seconds: for the cases; shown: print finds as they come"""

    engine: str
    timeout: float
    seed: int
    ops: list[str]
    only: str | None
    count: int | None
    seconds: float
    shown: bool

    def named(self) -> list[str]:
        """The operations, components and blocks that --ops names. Raises BadInput for a glob of none."""
        import fnmatch

        from refsd.fuzzing import fuzz as fuzzing
        from refsd.golden.wording import did_you_mean
        from refsd.numerics.errors import BadInput

        if self.only is not None:
            return []
        wanted: set[str] = set()
        for glob in ",".join(self.ops).split(","):
            known = next(kind.names() for prefix, kind in fuzzing.KINDS.items() if glob.startswith(prefix))
            if not fnmatch.filter(known, glob):
                raise BadInput(f"--ops {glob}: no operation matches{did_you_mean(glob, known)}")
            wanted |= {*fnmatch.filter(known, glob)}
        return [op for kind in reversed(fuzzing.KINDS.values()) for op in kind.names() if op in wanted]

    def questions(self, name: str, taken: list[str]) -> tuple[int, Any]:
        """The seed, and the operations and numbers to ask. name: the engine's; taken: what it takes of `named`

        Raises BadInput if nothing can be asked.
        """
        from refsd.fuzzing import fuzz as fuzzing
        from refsd.numerics.errors import BadInput
        from refsd.requests.random_case import parse

        if self.only is not None:
            found = parse(self.only)
            if found is None:
                raise BadInput(f"--only {self.only}: no name of a random case; expected fuzz/SEED/OPERATION/NUMBER")
            return found[0], iter([found[1:]])
        if not taken:
            raise BadInput(f"{name} takes no case of these operations; `refsd fuzz` asks operations and models")
        return self.seed, fuzzing.questions(self.seed, taken, self.count, self.seconds)


def _in_this_process(wanted: _Wanted, part: Path, out: Path, dask: None):
    """Ask and reduce -> the outcome. part: the folder to write, which gets the name `out`"""
    from refsd.commands.interruption import interruptible
    from refsd.engines.chosen import one_engine
    from refsd.fuzzing import fuzz as fuzzing
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import found_so_far
    from refsd.requests.isolated_engine import IsolatedEngine
    from refsd.shrinking import folder
    from refsd.shrinking.failure import runner_of
    from refsd.weights.model_files import model_files, trim_model_files

    engine = IsolatedEngine(one_engine(wanted.engine, timeout=wanted.timeout), wanted.engine, wanted.timeout)
    seed, questions = wanted.questions(engine.name, fuzzing.operations_of(engine, wanted.named()))
    partial = ""

    def keep(shrunk, number: int) -> str:
        name = fuzzing.folder_name(shrunk.case.op, number)
        folder.write(part / name, shrunk, engine, wanted.engine, model_files, out / name)
        return str(out / name)

    fuzzer = fuzzing.Fuzzer(engine, runner_of(model_files), keep)
    try:
        with compile_progress(), interruptible(), found_so_far("fuzz") as show:
            for op, number in questions:
                case = fuzzing.drawn_case(seed, op, number)
                find = fuzzer.try_case(case)
                if find is not None and wanted.shown:
                    _print_find(find)
                trim_model_files()
                show(f"{sum(fuzzer.asked.values())} cases, {len(fuzzer.finds)} finds, {case.name}")
    except KeyboardInterrupt:
        partial = "interrupted"
    return fuzzing.outcome(fuzzer, engine.name, engine.version, wanted.seed, partial)


def _on_cluster(wanted: _Wanted, part: Path, out: Path, dask: str):
    """The same on the workers of a cluster; after an interrupt what was found until then is reduced."""
    from refsd.cluster.connect import connected
    from refsd.cluster.fuzz import ask_all, find_engine, reduce_all
    from refsd.cluster.spread import NoWorkers, Spread
    from refsd.commands.interruption import interruptible
    from refsd.fuzzing import fuzz as fuzzing
    from refsd.progress.steps import found_so_far

    def keep(reduced, number: int) -> str:
        name = fuzzing.folder_name(reduced.op, number)
        (part / name).mkdir()
        for file, data in reduced.files.items():
            (part / name / file).write_bytes(data)
        return str(out / name)

    partial, finds, tally = "", [], fuzzing.Tally()
    with connected(dask) as client, found_so_far("fuzz") as show:
        spread = Spread(client)
        engine = find_engine(spread, wanted.engine, wanted.timeout, wanted.named())
        seed, questions = wanted.questions(engine.name, engine.ops)
        try:
            with interruptible():
                for name, new in ask_all(spread, engine, tally, seed, questions):
                    finds += [new] if new is not None else []
                    show(f"{sum(tally.asked.values())} cases, {len(tally.finds)} finds, {name}")
        except (KeyboardInterrupt, NoWorkers) as end:
            partial = str(end) or "interrupted"
        for find in reduce_all(spread, engine, tally, finds, keep, out):
            if wanted.shown:
                _print_find(find)
    return fuzzing.outcome(tally, engine.name, engine.version, wanted.seed, partial)


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
    text = f"{counted(cases, 'case')} of {counted(len(outcome.asked), 'operation')}"
    often = sorted(outcome.refused.items(), key=lambda one: -one[1])
    why = [f"{reason.removeprefix(f'{outcome.engine} ')} ({times})" for reason, times in often[:_REASONS]]
    why += [f"{counted(len(often) - _REASONS, 'other reason')}"] if len(often) > _REASONS else []
    rest = f"; {refused} refused{': ' if why else ''}{', '.join(why)}" + (
        f", {outcome.unjudged} without a verdict" if outcome.unjudged else ""
    )
    end = f"; {outcome.partial}" if outcome.partial else ""
    took = f"in {outcome.seconds:.0f} s, seed {outcome.seed}"
    typer.echo(f"{outcome.engine} {outcome.version}: {text} {took}{rest}{end}")
    if not outcome.finds:
        typer.echo("nothing found")
    for find in outcome.finds:
        typer.echo(f"{find.op}: {find.title} ({find.kind}, {counted(find.times, 'case')}): {find.folder}")
