"""refsd golden: make, list, show, verify and pack reference answers."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from refsd.cli.find_case import complete_case, unknown_case
from refsd.cli.json_output import JSON, print_json
from refsd.cli.mutants import redundant, show_mutants
from refsd.cli.numba_threads import import_numba_for
from refsd.cli.show_operation import show_operation, show_trajectory
from refsd.cli.sketch import bound, sketch
from refsd.cli.thresholds import thresholds
from refsd.golden.wording import counted, did_you_mean

if TYPE_CHECKING:
    from refsd.golden.case import Case

STORE = "goldens"
STORE_HELP = "Folder of the goldens, a packed file, or a URL of either."
_STORE = typer.Argument(STORE, help=STORE_HELP)
_STORE_OPTION = typer.Option(STORE, "--store", help=STORE_HELP)
_OUT = typer.Option(Path("goldens.tar"), "--out", "-o", help="File to write.")
CASES = typer.Option(
    ["*"],
    "--cases",
    help="Only the cases whose name matches this glob: 'conv2d/*', '*q4_k*'. May be repeated.",
    show_default="all cases",
    autocompletion=complete_case,
)
DASK = typer.Option(
    None,
    "--dask",
    metavar="tcp://HOST:PORT | local | N",
    help="Spread the work over a Dask cluster: a scheduler's address, a worker for each core of this machine, or N "
    "workers (docs/cluster.md). Needs the extra refsd[dask].",
)


def make(store: str = _STORE, cases: list[str] = CASES, dask: str = DASK, json: bool = JSON) -> None:
    """Compute the float64 answer of every case and store it.

    Answers that are already stored and intact are skipped, so an interrupted run can be resumed. Cases of full size
    (--cases 'full/*') begin with an estimate of time and disk; `refsd golden sketch` makes them small.

    With --dask the workers of a cluster compute, and this process stores. A store at a URL (s3://bucket/goldens) is
    written where the URL can be; several machines may make one store at once.
    """
    import_numba_for(cases)
    from refsd import cases as corpus
    from refsd.cluster.connect import connected
    from refsd.cluster.goldens import make_on
    from refsd.cluster.spread import Spread
    from refsd.golden.cache_folder import cache_folder
    from refsd.golden.publishing import can_publish
    from refsd.goldens.estimate import estimate
    from refsd.goldens.making import answerable, make_into
    from refsd.weights.model_files import open_store

    chosen = answerable(corpus.select(*cases))
    place = open_store(store)
    public = can_publish(place)
    before = estimate([case for case in chosen if not place.has(case)], cache_folder("models"))
    if before is not None:
        typer.echo(f"full size: {before.line}", err=True)
    if dask is None:
        new = make_into(place, chosen, public)
    else:
        with connected(dask) as client:
            new = len(make_on(Spread(client), place, chosen, public))
    if json:
        print_json({"store": store, "cases": len(chosen), "new": new})
    else:
        typer.echo(f"{store}: {counted(len(chosen), 'golden')}, {new} of them new")


def list_(store: str = _STORE, cases: list[str] = CASES, json: bool = JSON) -> None:
    """List every case, its operation, and whether the store has its answer."""
    from refsd import cases as corpus
    from refsd.adoption import folder as adopted
    from refsd.weights.model_files import open_store

    _check_there(store)
    names, folders = adopted.named(cases)
    places = [open_store(place) for place in (store, *map(str, folders))]
    rows = [(case, any(place.has(case) for place in places)) for case in corpus.select(*names)]
    if json:
        print_json([{"name": case.name, "op": case.op, "made": made} for case, made in rows])
        return
    where = " and ".join([store, "the folders"][: 1 + bool(folders)])
    for case, made in rows:
        typer.echo(f"{'made' if made else '    '}  {case.name}")
    typer.echo(f"{counted(len(rows), 'case')}, {sum(made for _, made in rows)} of them in {where}")


def _check_there(store: str) -> None:
    """Raise BadInput for a store that is not there, but for the usual one, which `make` would begin."""
    from refsd.golden.origins import is_remote
    from refsd.numerics.errors import BadInput

    if store == STORE or is_remote(store) or Path(store).exists():
        return
    meant = f": to list some cases, write --cases {shlex.quote(store)}" if "/" in store or "*" in store else ""
    raise BadInput(f"no store of goldens {store!r}{meant}")


_SHOWN = typer.Argument(
    None,
    metavar="[NAME]...",
    help="The name of a case, of an operation, of a model's component (model/unet) or trajectory; or a folder of "
    "adopt. Several are shown in turn.",
    autocompletion=complete_case,
)


def show(
    names: list[str] = _SHOWN,
    store: str = _STORE_OPTION,
    mutants: bool = typer.Option(
        False, "--mutants", help="Show which known bugs each case detects, for all operations or one."
    ),
    taps: str = typer.Option(
        None,
        help="Show the taps of a tiny model's case whose names match this glob, in the order of computation: "
        "shape, and what each is computed from.",
    ),
    json: bool = JSON,
) -> None:
    """Show a case: operation, input recipes, parameters and stored outputs; or the arguments of an operation."""
    import msgspec

    from refsd import cases as corpus
    from refsd.adoption import folder as adopted
    from refsd.golden.operations import OPERATIONS
    from refsd.judges import judges
    from refsd.numerics.errors import BadInput
    from refsd.numerics.printable import printable
    from refsd.stages import STAGES
    from refsd.weights.model_files import open_store

    if names and len(names) > 1:
        for one in names:
            show([one], store, mutants, taps, json)
        return
    name = names[0] if names else None
    if mutants:
        show_mutants(name, json)
        return
    if name == "trajectory":
        show_trajectory(json)
        return
    if name in OPERATIONS or name in STAGES:
        show_operation(name, json)
        return
    if name is not None and adopted.is_pipeline(Path(name)):
        _show_pipeline(name, json)
        return
    if name is not None and adopted.is_folder(Path(name)):
        store, name = name, adopted.read(Path(name)).name
    models = sorted({case.op for case in corpus.CASES.values() if case.op.startswith("model/")})
    if name in models:
        _show_component(name, json)
        return
    if name not in corpus.CASES:
        raise BadInput(unknown_case(name, [*corpus.CASES, *OPERATIONS, *STAGES, *models]))
    case = corpus.CASES[name]
    if taps is not None:
        _show_taps(case, taps, json)
        return
    place = open_store(store)
    manifest = place.get(name).manifest if place.has(case) else None
    if json:
        print_json(msgspec.to_builtins({"case": case, "manifest": manifest}))
        return
    typer.echo(f"{case.name}\n  {case.op}: {judges().of(case).what(case)}")
    meanings = _meanings(case.op)
    for argument, recipe in case.inputs.items():
        exponent = f", 2**{recipe.exponent}" + (f" + {recipe.offset:g}" if recipe.offset else "")
        exponent = f" {recipe.offset:g}" if recipe.data == "constant" else exponent
        what = f"; {meanings[argument]}" if argument in meanings else ""
        typer.echo(f"  {argument:8} {recipe.type} {list(recipe.shape)}  {recipe.data}{exponent}{what}")
    for parameter, value in case.params.items():
        typer.echo(f"  {parameter} = {value}")
    if manifest is None:
        typer.echo(
            f"  no golden in {store} yet: made when needed, or by `refsd golden make {store} --cases '{name}'`"
        )
        return
    for output, note in manifest.outputs.items():
        typer.echo(printable(f"  -> {output:5} {note.dtype} {list(note.shape)}  sha256 {note.sha256}"))
    made_by = ", ".join(f"{key} {value}" for key, value in manifest.generator.items())
    typer.echo(f"  blob {manifest.blob}.safetensors, {manifest.bytes} bytes")
    typer.echo(printable(f"  made by {made_by}"))


def _meanings(op: str) -> dict[str, str]:
    """Return argument -> what it is: in words for a model's component, its axes for an operation or a stage."""
    from refsd.components import COMPONENTS
    from refsd.golden.operations import OPERATIONS
    from refsd.stages import STAGES

    if op in OPERATIONS or op in STAGES:
        return {argument.rstrip("?"): axes for argument, axes in {**OPERATIONS, **STAGES}[op].inputs.items()}
    of = COMPONENTS.get(op.removeprefix("model/"))
    return {argument: each.what for argument, each in of.arguments.items()} if of is not None else {}


def _show_taps(case: "Case", glob: str, json: bool) -> None:
    """Print a line for each tap: its name, shape, and the taps and inputs that it is computed from."""
    from fnmatch import fnmatchcase

    from refsd.adoption import folder as adopted
    from refsd.components.data_flow import Step, trace
    from refsd.judges import judges
    from refsd.numerics.errors import BadInput

    if case.name.startswith(adopted.KIND):  # of a graph it is known in which order, and not from what
        found = judges().of(case).reference_taps(case, case.realize())
        steps, blocks = tuple(Step(name, "tap", y.shape) for name, y in found.items()), ()
    elif case.model is None or case.name.startswith("full/"):
        raise BadInput(f"{case.name}: the taps of tiny models are shown: `refsd golden list` has their cases")
    else:
        run = trace(case)
        steps, blocks = run.steps, run.blocks
    # A block's output stands behind the last step that it comes from.
    placed = [*enumerate(steps), *((max((i for _, i in block.takes), default=0), block) for block in blocks)]
    listed = [step for _, step in sorted(placed, key=lambda one: one[0])]
    shown = [step for step in listed if step.op and fnmatchcase(step.name, glob)]
    if not shown:
        raise BadInput(f"{case.name}: no tap matches {glob!r}{did_you_mean(glob, [step.name for step in listed])}")
    if json:
        takes = [[{"as": one, "of": steps[i].name} for one, i in step.takes] for step in shown]
        print_json(
            [{"tap": step.name, "shape": step.shape, "from": of} for step, of in zip(shown, takes, strict=True)]
        )
        return
    wide = max(len(step.name) for step in shown)
    for step in shown:
        of, parts = dict[str, list[str]](), dict(step.parts)
        for one, i in step.takes:
            of.setdefault(one, []).append(f"{parts.get(one, '')}{steps[i].name}")
        text = ", ".join(f"{one} = {' and '.join(names)}" for one, names in of.items())
        typer.echo(f"{step.name:{wide}}  {[*step.shape]!s:18}  {text}".rstrip())


def _show_pipeline(folder: str, json: bool) -> None:
    """Print the networks of a pipeline's folder with their inputs, its stages, and what was left out."""
    import msgspec

    from refsd.adoption import folder as adopted
    from refsd.cases import CASES
    from refsd.components import COMPONENTS

    names, folders = adopted.named([folder])
    pipeline = adopted.read_pipeline(Path(folder))
    if json:
        print_json(msgspec.to_builtins(pipeline))
        return
    made_of = pipeline.made.get("made of", "")
    typer.echo(f"{folder}: {made_of}, {counted(len(folders), 'network')}, scheduler {pipeline.scheduler}")
    for name, place in zip(names, folders, strict=False):
        taken = (f"{key} {list(CASES[name].inputs[key].shape)}" for key in COMPONENTS[name].arguments)
        typer.echo(f"  {name} in {place}: takes {', '.join(taken)}")
    for case in pipeline.stages:
        typer.echo(f"  {adopted.rule_of(case)}")
    for part, reason in pipeline.refused.items():
        typer.echo(f"  left out: {part}: {reason}")


def _show_component(name: str, json: bool) -> None:
    """Print the arguments of a model's component, and its cases. name: "model/tae-decoder"."""
    from refsd import cases as corpus
    from refsd.components import COMPONENTS

    of = COMPONENTS[name.removeprefix("model/")]
    inputs = {argument: each.shape for argument, each in of.arguments.items()}
    cases = [case.name for case in corpus.CASES.values() if case.op == name]
    if json:
        print_json({"op": name, "inputs": inputs, "params": [*of.params], "outputs": [*of.outputs], "cases": cases})
        return
    typer.echo(
        f"{name}: one component of a model; `refsd forward --component {name.removeprefix('model/')}` runs it"
    )
    for argument, each in of.arguments.items():
        typer.echo(f"  {argument:8} {each.shape:8} {each.what}{', optional' if each.optional else ''}")
    for output, shape in of.outputs.items():
        typer.echo(f"  -> {output:5} {shape}")
    typer.echo(f"{counted(len(cases), 'case')}: {', '.join(cases)}")


def verify(
    store: str = _STORE,
    cases: list[str] = CASES,
    again: bool = typer.Option(False, "--recompute", help="Recompute every answer and compare."),
    json: bool = JSON,
) -> None:
    """Check a store: every hash and recipe; report missing and superfluous files.

    --recompute computes every answer again, with weights made anew from their recipes, and demands equal bits, or
    a relative L2 distance of at most 1e-13 if another BLAS kernel sums in another order. Of a folder of `adopt`
    its own case is checked.
    Exit code 1 if anything is wrong.
    """
    import fnmatch

    from refsd import cases as corpus
    from refsd.adoption import folder as adopted
    from refsd.engines.reference import Reference
    from refsd.golden.store import recompute
    from refsd.numerics.errors import BadInput
    from refsd.numerics.printable import printable
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps
    from refsd.weights.model_files import fresh_model_files, open_store

    own = [adopted.read(Path(store))] if adopted.is_folder(Path(store)) else []
    chosen = {case.name: case for case in own or corpus.select(*cases)}
    place = open_store(store)
    if place.origin is None and not place.root.exists():
        raise BadInput(f"{store}: no such store: run `refsd golden make {store}`")
    # Globs skip the cases of cases.ASKED_FOR (full/, lone/); check those that the store has.
    concerned = [name for name in place.names() if any(fnmatch.fnmatchcase(name, glob) for glob in cases)]
    chosen |= {name: corpus.CASES[name] for name in concerned if name in corpus.CASES}
    problems = list(place.verify(chosen, concerned))
    whole = sorted(chosen.keys() - {problem.case for problem in problems})
    if again:
        with compile_progress(), fresh_model_files() as files, steps("again", len(whole)) as advance:
            reference = Reference(model_files=files)
            for name in whole:
                drift = recompute(place.get(name), chosen[name], reference)
                problems += [drift] if drift else []
                advance(name)
                files.trim()
    if json:
        print_json({"cases": len(chosen), "whole": len(whole), "problems": [p._asdict() for p in problems]})
    else:
        for problem in problems:
            typer.echo(printable(f"{problem.kind:8} {problem.what}"))
        whole_of_all = f"{len(whole)} of {counted(len(chosen), 'golden')} whole"
        typer.echo(f"{store}: {whole_of_all}, {counted(len(problems), 'problem')}")
    if problems:
        raise typer.Exit(1)


def pack(
    store: str = _STORE,
    out: Path = _OUT,
    cases: list[str] = CASES,
    force: bool = typer.Option(False, "--force", help="Replace a file that is there."),
    json: bool = JSON,
) -> None:
    """Pack a store into one file, to be attached to a release or kept by a CI.

    The same goldens give the same bytes, with the SHA-256 of each file inside. Every command reads goldens from
    such a file, and from a URL of one: --golden https://host/goldens.tar#sha256=DIGEST.
    """
    import fnmatch

    from refsd.cli.bar import bar
    from refsd.golden.output_file import Outputs
    from refsd.golden.packing import pack as write
    from refsd.numerics.errors import BadInput
    from refsd.weights.model_files import open_store

    place = open_store(store)
    names = [name for name in place.names() if any(fnmatch.fnmatchcase(name, glob) for glob in cases)]
    if not names:
        raise BadInput(f"{store}: no golden matches {' or '.join(cases)}: run `refsd golden make {store}`")
    if out.exists() and not force:
        raise BadInput(f"{out}: exists; name another file, or pass --force")
    Outputs().add("--out", out)
    with bar("pack", sum(place.manifest(name).bytes for name in names)) as advance:
        digest = write(place, names, out, advance)
    size = out.stat().st_size
    if json:
        print_json({"out": str(out), "goldens": len(names), "bytes": size, "sha256": digest})
    else:
        typer.echo(f"{out}: {counted(len(names), 'golden')}, {size / 1e6:.1f} MB\n{out}#sha256={digest}")


golden = typer.Typer(no_args_is_help=True, help="Make, list, show, verify and pack reference answers.")
golden.command()(make)
golden.command(name="list")(list_)
golden.command()(show)
golden.command()(redundant)
golden.command()(thresholds)
golden.command()(verify)
golden.command()(pack)
golden.command()(sketch)
golden.command()(bound)
