"""refsd golden sketch, refsd golden bound: goldens in less than 64 KiB, and what they say of an engine's answer."""

from pathlib import Path

import typer

from refsd.cli.find_case import complete_case
from refsd.cli.json_output import JSON, print_json

_STORE = typer.Argument("goldens", help="Folder of the goldens, a packed file, or a URL of either.")
_CASES = typer.Option(
    ["full/*"], "--cases", help="Cases whose name matches this glob.", autocompletion=complete_case
)
_OUT = typer.Option(Path("sketches"), "--out", "-o", help="Folder to write: <case>.safetensors.")
_HONEST = typer.Option(["float32"], "--numerics", help="Profiles whose honest runs are noted, for `bound`.")
_SKETCH = typer.Argument(help="A file of `refsd golden sketch`.")
_FOUND = typer.Argument(help="Safetensors with the engine's outputs under the case's names.")
_NUMERICS = typer.Option("float32", "--numerics", help="The profile that the engine declares.")
# Of an honest run's error, as for whole models (golden/verdict.py).
_ALLOWED = 4.0


def sketch(
    store: str = _STORE,
    cases: list[str] = _CASES,
    out: Path = _OUT,
    numerics: list[str] = _HONEST,
    json: bool = JSON,
) -> None:
    """Write sketches of goldens: less than 64 KiB each, however large the answer.

    A sketch bounds the error of every element of an engine's answer, each with a probability of
    1 - 2^-32 (golden/sketches.py). Beside it stand the errors of the honest runs, which are
    computed here.
    """
    from refsd import cases as corpus
    from refsd.engines.reference import Reference
    from refsd.golden.output_file import write_file
    from refsd.golden.sketches import encode
    from refsd.golden.sketches import sketch as sketched
    from refsd.golden.wording import counted, did_you_mean
    from refsd.numerics.errors import BadInput
    from refsd.numerics.profiles import PROFILES
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps
    from refsd.weights.model_files import model_files, open_store, trim_model_files

    unknown = [name for name in numerics if name not in PROFILES]
    if unknown:
        meant = did_you_mean(unknown[0], PROFILES)
        raise BadInput(f"--numerics {unknown[0]}: no such profile{meant}; there are {', '.join(PROFILES)}")
    place = open_store(store)
    chosen = [case for case in corpus.select(*cases) if place.has(case)]
    if not chosen:
        raise BadInput(f"{store}: no golden matches {' or '.join(cases)}: run `refsd golden make {store}`")
    honest = {name: Reference(PROFILES[name], model_files=model_files) for name in numerics}
    sizes = {}
    with compile_progress(), steps("sketches", len(chosen)) as advance:
        for case in chosen:
            golden, inputs = place.get(case.name), case.realize()
            near = {name: reference.run(case, inputs) for name, reference in honest.items()}
            data = encode(sketched(case.name, golden.manifest.generator["refsd"], golden.outputs, near))
            write_file(out / f"{case.name}.safetensors", data)
            sizes[case.name] = {"bytes": len(data), "golden": golden.manifest.bytes}
            trim_model_files()
            advance(case.name)
    if json:
        print_json({"out": str(out), "sketches": sizes})
        return
    of = sum(size["golden"] for size in sizes.values())
    total = sum(size["bytes"] for size in sizes.values())
    typer.echo(f"{out}: {counted(len(sizes), 'file')}, {total / 1e3:.0f} kB of {of / 1e3:.0f} kB")


def bound(
    sketch: Path = _SKETCH,
    found: Path = _FOUND,
    numerics: str = _NUMERICS,
    json: bool = JSON,
) -> None:
    """Bound the error of every element of an engine's answer by a sketch of the golden.

    It fails where an output is missing, misshapen or not finite, and where the RMS error or the
    bound exceeds 4 times the honest run's: so a single wrong element is detected that is off by
    more than 4 times the bound of the honest run. Exit code 1 if it fails.
    """
    import numpy as np

    from refsd.files.safetensors import open_safetensors
    from refsd.golden import sketches
    from refsd.golden.input_file import read_input
    from refsd.numerics.errors import BadInput

    golden = sketches.decode(read_input(sketch, 1 << 20, "a sketch"), str(sketch))
    tensors = open_safetensors(found)
    lines = []
    for output, note in golden.note.outputs.items():
        if numerics not in note.honest:
            noted = ", ".join(note.honest) or "none"
            raise BadInput(
                f"{sketch}: no honest run of {numerics}, only {noted}: sketch with --numerics {numerics}"
            )
        rms, worst = (_ALLOWED * of for of in note.honest[numerics])
        line = {"output": output, "allowed_rms": rms, "allowed": worst, "passed": False, "why": ""}
        y = np.asarray(tensors[output].data) if output in tensors else None
        if y is None or y.shape != note.shape or not np.isfinite(y).all():
            shape = (
                "missing" if y is None else "not finite" if y.shape == note.shape else f"of shape {list(y.shape)}"
            )
            lines.append(line | {"why": shape})
            continue
        it = sketches.bound(golden.note.case, output, note, golden.sums[output], y)
        passed = it.rms <= rms and it.worst <= worst
        lines.append(line | it._asdict() | {"passed": passed})
    if json:
        print_json({"case": golden.note.case, "numerics": numerics, "outputs": lines})
    else:
        for line in lines:
            typer.echo(
                f"{'pass' if line['passed'] else 'FAIL'}  {line['output']}: {line['why'] or _sentence(line)}"
            )
    if not all(line["passed"] for line in lines):
        raise typer.Exit(1)


def _sentence(line) -> str:
    return (
        f"no element is off by more than {line['worst']:.3g} (chance of an exception {line['chance']:.1g}; allowed "
        f"{line['allowed']:.3g}); RMS error {line['rms']:.3g} (allowed {line['allowed_rms']:.3g}); most at "
        f"{list(line['at'])}, about {line['estimate']:.3g}"
    )
