"""refsd compare: judge tensors that an engine left in a file."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from refsd.cli.find_case import complete_case
from refsd.cli.json_output import JSON
from refsd.golden.wording import counted, did_you_mean

_DUMP = typer.Argument(help="safetensors, gguf, npz, npy, stable-diffusion.cpp's .bin, or a folder of npy.")
_WHICH = typer.Argument(
    help="A case's name, a folder of `refsd adopt` (of a pipeline's the network with the dump's names), or a file "
    "of float64 tensors.",
    autocompletion=complete_case,
)
_NUMERICS = typer.Option(
    None, help="With a case: the numerics profile that the engine declares.", show_default="float32"
)
_HONEST = typer.Option(
    None, help="With a file: the same tensors from an honest run, e.g. of `refsd forward --numerics torch-f16`."
)
NAMES = typer.Option(
    None,
    "--names",
    metavar="MINE=THEIRS|FILE",
    help="What a tensor of the dump is called in the reference; 'blk.*.attn=layers.*.attention' for all at once; "
    "or a file of such lines. May be repeated.",
)
_GOLDEN = typer.Option(
    "goldens", "--store", help="With a case: the store of goldens. A missing answer is computed."
)

_PATIENCE = 2.0  # seconds of a search before a line says so
_PICTURES = {".png", ".jpg", ".jpeg", ".webp"}


def compare(
    dump: Path = _DUMP,
    golden: str = _WHICH,
    numerics: str = _NUMERICS,
    honest: Path = _HONEST,
    names: list[str] = NAMES,
    store: str = _GOLDEN,
    json: bool = JSON,
) -> None:
    """Judge a dump against a golden, as `refsd conform` judges an engine.

    For a case, outputs are judged by the case's bound and honest run. The dump may also contain taps (intermediate
    results), or only taps: any subset of the names that `refsd forward --taps` writes. The reference
    computes each tap from the dump's own previous taps, so an error counts only where it arises. A tap is
    wrong if its error exceeds 4 times that of an honest run. refsd names the first wrong
    tap, and what is wrong there and in up to three layers behind it.

    A dump that is right but stored otherwise is told so: "agrees after transpose(0, 3, 1, 2): it is NHWC for NCHW",
    "stored as float16: it conforms under --numerics torch-f16".

    A tensor whose name the golden does not have is noted and not judged; --names tells what it is.
    One of the right size in another shape is reshaped, and that is noted.

    For a file of float64 tensors, each tensor is judged as a tap, in the file's order, against the --honest file.

    Exit code 0: what the dump has conforms. 1: it does not. 2: bad input.
    """
    import msgspec

    from refsd.adoption import folder as adopted
    from refsd.cases import CASES
    from refsd.engines.dump.engine import read_dump
    from refsd.judges.comparison import with_case, with_files
    from refsd.numerics.errors import BadInput
    from refsd.numerics.profiles import PROFILES
    from refsd.progress.compiling import compile_progress
    from refsd.reports.comparison_lines import comparison_lines, headline

    if numerics is not None and numerics not in PROFILES:
        meant = did_you_mean(numerics, PROFILES)
        raise BadInput(f"no numerics profile {numerics!r}{meant}; there are {', '.join(PROFILES)}")
    if {Path(dump).suffix.lower(), Path(golden).suffix.lower()} & _PICTURES:
        raise BadInput(
            f"{dump}, {golden}: pictures are not compared: `refsd disagree A B -m MODEL -p PROMPT` says from the "
            "settings why two engines draw differently, with dump:FILE for an engine's own tensors"
        )
    chosen = []
    if adopted.is_pipeline(Path(golden)):
        golden = str(adopted.part_of(Path(golden), _named(dump, names)[0]))
        chosen = [f"of the pipeline's networks {golden} has these tensors"]
    if adopted.is_folder(Path(golden)):
        golden, store = adopted.read(Path(golden)).name, golden
    if golden in CASES:
        if honest is not None:
            raise BadInput(f"--honest: {golden} is a case, whose honest run is computed; leave it out")
        found, idle, called = _named(dump, names)
        truth, model_files = _golden(CASES[golden], store)
        with compile_progress():
            profile = PROFILES[numerics or "float32"]
            compared = with_case(
                CASES[golden], found, truth, profile, model_files, targets=called, seeking=_seeking
            )
    elif Path(golden).exists():
        if numerics is not None:
            raise BadInput("--numerics: against a file, --honest shows how an engine computes; leave it out")
        if honest is None:
            raise BadInput(
                f"{golden}: a file shows no honest error to judge by: give --honest FILE, the same tensors "
                "with the engine's numerics, as of `refsd forward --numerics torch-f16 --taps FILE`"
            )
        found, idle, called = _named(dump, names)
        compared = with_files(found, read_dump(Path(golden)), read_dump(honest), called)
    else:
        beside = [str(path) for path in Path(golden).parent.glob("*")]
        meant = did_you_mean(golden, [*CASES, *beside])
        raise BadInput(f"{golden!r}{meant} is neither a case (`refsd golden list`) nor a file")
    if idle:
        some = ", ".join(idle[:5]) + (", ..." if len(idle) > 5 else "")
        line = f"{counted(len(idle), 'line')} of --names {'fits' if len(idle) == 1 else 'fit'} no tensor: {some}"
        compared = compared._replace(notes=[*compared.notes, line])
    compared = compared._replace(notes=[*compared.notes, *chosen])
    examined = compared.examined
    judged = examined.verdict
    if json:
        parts = {
            "verdict": judged,
            "place": examined.place,
            "causes": compared.causes,
            "others": dict(compared.others),
            "looks": compared.looks,
            "stored": compared.stored,
            "absent": compared.absent,
            "notes": [*compared.misnamed, *compared.notes],
        }
        parts |= {"taps": examined.trace.taps, "outputs": examined.outputs}
        typer.echo(msgspec.json.encode(parts).decode())
    else:
        typer.echo(headline(compared, f"{dump} against {golden}"))
        for line in comparison_lines(compared):
            typer.echo(line)
    if not judged.passed:
        raise typer.Exit(1)


@contextmanager
def _seeking(place: str) -> Iterator[None]:
    line = f"seeking the cause at {place}: half a minute at most, and for up to four places in all"
    timer = threading.Timer(_PATIENCE, typer.echo, (line,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _named(dump: Path, names: list[str] | None):
    """Read a dump's tensors, under the names that the user gives them.

    -> tensors, names of files that no tensor has, the names that tensors got by each pair
    """
    from refsd.engines.dump.engine import read_dump
    from refsd.engines.dump.names import read_names, renamed, targets, unused
    from refsd.judges.comparison import Targets

    found, given = read_dump(dump), names or ()
    pairs = read_names(given)
    return renamed(found, pairs), unused(found, pairs, given), Targets(*targets(found, pairs, given))


def _golden(case, store: str):
    """Return the case's answer, computed if the store lacks it, and the function that makes model weights."""
    from refsd.goldens.making import make_into
    from refsd.weights.model_files import model_files, open_store

    place = open_store(store)
    make_into(place, [case])
    return place.get(case.name).outputs, model_files
