"""refsd export: write cases as files that any program can read."""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.find_case import complete_case
from refsd.cli.numerics import Profile


class Form(StrEnum):
    npy = "npy"
    safetensors = "safetensors"
    bin = "bin"
    gguf = "gguf"
    onnx = "onnx"


# Bytes above which the size is told before anything is written.
_MUCH = 100e6


def export(
    cases: Annotated[
        list[str],
        typer.Argument(help="Globs of cases: 'conv2d/*', 'sd15/*'.", autocompletion=complete_case),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    format: Annotated[
        Form,
        typer.Option(help="npy, bin: a file for each tensor; safetensors, gguf: one for all; onnx: a model."),
    ] = (Form.safetensors),
    numerics: Profile = "float32",
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Write the weights of models' cases.")
    ] = True,
    taps: Annotated[
        bool, typer.Option("--taps", help="Write intermediate results of models too, in float64.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that refsd export wrote.")] = False,
    store: Annotated[str, typer.Option(help="Store of goldens. A missing answer is computed.")] = "goldens",
) -> None:
    """Write cases as files: inputs, weights, parameters, the float64 answer, and the bound under --numerics.

    For a program that cannot draw recipes. index.json says which files there are, with types, shapes and SHA-256;
    docs/export.md shows ten lines of C++ that read them. Judge what the program leaves with `refsd compare`.
    --format onnx writes ONNX's backend tests: model.onnx and test_data_set_0 (docs/onnx.md).
    """
    import shutil

    from refsd import cases as corpus
    from refsd.cli.bar import bar
    from refsd.export.cases import INDEX, bytes_to_write, check_inputs
    from refsd.golden.output_file import check_replaceable, replaced_folder
    from refsd.golden.wording import counted
    from refsd.goldens.making import answerable, make_into
    from refsd.numerics.errors import BadInput
    from refsd.numerics.profiles import PROFILES
    from refsd.progress.compiling import compile_progress
    from refsd.weights.model_files import model_files, open_store

    if numerics not in PROFILES:
        raise BadInput(f"--numerics {numerics}: expected one of {', '.join(PROFILES)}")
    place = open_store(store)
    if not force and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out}: exists; name another folder, or pass --force to replace what refsd export wrote")
    check_replaceable(out, INDEX)
    chosen, writer, refused = _writer(format, answerable(corpus.select(*cases)))
    check_inputs(chosen, format.value, weights)
    make_into(place, chosen)
    size = bytes_to_write(chosen, place, weights, taps)
    free = shutil.disk_usage(out.absolute().parent).free
    if size > free:
        raise BadInput(
            f"{out}: {size / 1e9:.1f} GB would be written, {free / 1e9:.1f} GB are free; try --no-weights"
        )
    if size > _MUCH:
        typer.echo(f"writing {size / 1e9:.1f} GB to {out}", err=True)
    with replaced_folder(out, INDEX) as folder:
        written = writer(folder, format.value, PROFILES[numerics], model_files, weights, taps)
        with compile_progress(), bar("export", size) as advance:
            for case in chosen:
                written.add(case, place, advance)
        index = written.close()
    for reason, count in Counter(refused.values()).items():
        typer.echo(f"left out {counted(count, 'case')}: {reason}", err=True)
    total = sum(note.bytes for note in index.files.values())
    typer.echo(
        f"{out}: {counted(len(index.cases), 'case')}, {counted(len(index.files), 'file')}, {total / 1e6:.1f} MB"
    )


def _writer(form: Form, cases):
    """-> the cases that the format can say, the class that writes, why others are left out. Raises BadInput."""
    from refsd.export.cases import Export
    from refsd.golden.wording import needing

    if form is not Form.onnx:
        return cases, Export, {}
    with needing(["onnx"], "onnx", "--format onnx"):
        from refsd.onnx.export import OnnxExport, sayable

    cases, refused = sayable(cases)
    return cases, OnnxExport, refused
