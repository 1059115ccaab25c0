"""refsd shrink: reduce a case to the smallest one that an engine still fails."""

from pathlib import Path

import typer

from refsd.cli.find_case import complete_case
from refsd.cli.json_output import JSON, print_json

_ENGINE = typer.Argument(
    metavar="ENGINE", help="torch, torch-bf16, ggml[:LIBRARY], exec:PROGRAM, gguf-py, refsd[:PROFILE], ..."
)
_CASE = typer.Argument(
    metavar="CASE",
    help="A case (`refsd golden list`), a random one (fuzz/7/rope/0), or a folder of `refsd shrink`.",
    autocompletion=complete_case,
)
_OUT = typer.Option(Path("refsd-shrunk"), "-o", "--out", help="Folder to write; one written before is replaced.")
_SECONDS = typer.Option(
    60.0, "--seconds", min=0.0, help="Time for the search; the smallest case so far is written."
)
_REPORT = typer.Option(
    Path("refsd-report"),
    help="Folder of `refsd conform`'s report: of several causes that fit, what it names is first.",
)


def shrink(
    engine: str = _ENGINE,
    case: str = _CASE,
    out: Path = _OUT,
    seconds: float = _SECONDS,
    report: Path = _REPORT,
    json: bool = JSON,
) -> None:
    """Reduce a failing case to the smallest that an engine still fails in the same way.

    Sizes, axes, optional inputs, parameters, storage types and numbers are made
    simpler as long as the verdict, the place and the likeliest cause stay the same.
    Of a model whose engine shows its taps, the operation at the first wrong tap is
    asked alone, on the engine's own inputs to it; if it fails too, it is reduced in
    the model's place. Else the model has smaller pictures, batches and texts, a
    trajectory fewer steps, a stage a shorter prompt.
    The folder has the inputs, the expected answer and its bound, a Python script and
    (where ggml has the operation) a C++ program that reproduce and judge it, and the
    text of an issue for the engine's tracker. docs/fuzz.md explains it.

    Exit code 0: the engine conforms in this case, nothing is written. 1: it does not; the folder is written.
    2: bad usage or bad input.
    """
    from refsd.cli.find_case import find_case
    from refsd.commands.interruption import interruptible
    from refsd.engines.chosen import one_engine
    from refsd.golden.operations import OPERATIONS
    from refsd.golden.output_file import check_replaceable
    from refsd.numerics.errors import BadInput
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import found_so_far
    from refsd.reports import files
    from refsd.reports.stored import first_cause
    from refsd.requests.isolated_engine import IsolatedEngine
    from refsd.shrinking import folder
    from refsd.shrinking.failure import ask, cut, failure_of, runner_of
    from refsd.shrinking.shrink import shrink as reduce
    from refsd.weights.model_files import model_files

    requested, judged = find_case(case), one_engine(engine)
    if requested.op in OPERATIONS:
        judged = IsolatedEngine(judged, engine)
        judged.layout = getattr(requested, "layout", "contiguous")
    check_replaceable(out, folder.CASE)
    refusal = judged.refuses(requested)
    if refusal is not None:
        raise BadInput(f"{judged.name} does not take {requested.name}: {refusal}")
    runner, named = runner_of(model_files), first_cause(report / files.JSON, judged.name, requested.name)

    def question(smaller):
        result = ask(runner, judged, smaller)
        return result.led_by(named) if result is not None and named in result.causes else result

    with compile_progress(), interruptible(), found_so_far("shrink") as show:
        result = question(requested)
        if result is None:
            raise BadInput(
                f"{requested.name}: nothing can be judged: the case does not fit, or its numerics are too coarse"
            )
        if failure_of(result) is None:
            _print_conforming(result, named, json)
            return
        shrunk = reduce(
            question,
            requested,
            result,
            seconds,
            lambda smaller: show(_sizes(smaller)),
            lambda smaller: ask(runner._replace(explains=False), judged, smaller),
            lambda smaller: cut(runner, judged, smaller),
        )
        written = folder.write(out, shrunk, judged, engine, model_files)
    _print(shrunk, out, written, json)
    raise typer.Exit(1)


def _sizes(case) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, recipe.shape))}" for name, recipe in case.inputs.items())


def _print_conforming(result, named: str, json: bool) -> None:
    if json:
        print_json({"status": result.status, "engine": result.engine, "case": result.case})
    else:
        before = f"; in the report it failed: {named}" if named else ""
        typer.echo(f"{result.engine} conforms in {result.case}: there is nothing to shrink{before}")


def _print(shrunk, out: Path, files: list[str], json: bool) -> None:
    import msgspec

    from refsd.golden.wording import counted

    result = shrunk.result
    if json:
        shapes = {name: list(recipe.shape) for name, recipe in shrunk.case.inputs.items()}
        print_json(
            {
                "status": result.status,
                "engine": result.engine,
                "case": shrunk.original.name,
                "op": shrunk.case.op,
                "tap": shrunk.tap,
                "place": result.place,
                "shapes": shapes,
                "types": {name: recipe.type for name, recipe in shrunk.case.inputs.items()},
                "params": msgspec.to_builtins(shrunk.case.params),
                "causes": [*(result.deviations or result.causes)],
                "reason": result.reason,
                "questions": shrunk.questions,
                "seconds": shrunk.seconds,
                "whole": shrunk.whole,
                "folder": str(out),
                "files": files,
            }
        )
        return
    typer.echo(f"{result.engine} fails {shrunk.original.name} ({_sizes(shrunk.original)})")
    if shrunk.tap:
        typer.echo(f"its first wrong tap is {shrunk.tap}: {shrunk.case.op} alone fails on what goes in there")
    heading = "smallest" if shrunk.whole else "smallest so far"
    typer.echo(f"{heading}: {_sizes(shrunk.case)}" + "".join(f", {k} = {v}" for k, v in shrunk.case.params.items()))
    typer.echo(f"    {result.reason}")
    end = "" if shrunk.whole else ": the time was over before every step was tried (--seconds)"
    typer.echo(f"{counted(shrunk.questions, 'question')} in {shrunk.seconds:.1f} s{end}")
    typer.echo(f"{out}: {', '.join(files)}")
