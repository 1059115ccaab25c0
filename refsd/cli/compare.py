"""refsd compare: judge tensors that an engine left in a file."""

import functools
from pathlib import Path

import typer

_DUMP = typer.Argument(help="safetensors, gguf, npz, npy, stable-diffusion.cpp's .bin, or a folder of npy.")
_WHICH = typer.Argument(help="A case's name, or a safetensors file of float64 tensors.")
_NUMERICS = typer.Option("float32", help="How the engine says that it computes: a numerics profile.")
_GOLDEN = typer.Option(Path("goldens"), "--store", help="Store of goldens, for a case's name; made if it lacks it.")
_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    dump: Path = _DUMP,
    golden: str = _WHICH,
    numerics: str = _NUMERICS,
    store: Path = _GOLDEN,
    json: bool = _JSON,
) -> None:
    """Judge a dump against a golden, as `refsd conform` judges an engine.

    Against a case, its bound and its honest run decide. Against a file, there is nothing to run: what stands for
    the honest run is each number's rounding to the profile's storage, 64 times over.

    Exit code 0: it conforms. 1: it does not. 2: bad input.
    """
    import msgspec

    from refsd.golden import verdict
    from refsd.golden.cases import CASES
    from refsd.golden.errors import BadInput
    from refsd.golden.numerics import PROFILES
    from refsd.trajectory import JUDGES

    if numerics not in PROFILES:
        raise BadInput(f"no numerics profile {numerics!r}; there are {', '.join(PROFILES)}")
    found = _read(dump)
    bugs: list[str] = []
    if golden in CASES:
        metrics, bugs = _against_case(CASES[golden], found, store, PROFILES[numerics])
    elif Path(golden).is_file():
        metrics = _against_file(Path(golden), found, PROFILES[numerics])
    else:
        raise BadInput(f"{golden!r} is neither a case (`refsd golden list`) nor a file")
    special = JUDGES.get(CASES[golden].op) if golden in CASES else None
    judged = verdict.judge_in_order(metrics) if special else verdict.judge(metrics)
    if json:
        named = {"bugs": bugs} if golden in CASES else {}
        typer.echo(msgspec.json.encode({"verdict": judged, **named, "outputs": metrics}).decode())
    else:
        for m in metrics:
            one = verdict.judge_output(m)
            typer.echo(
                f"{'pass' if one.passed else 'FAIL'}  {m.output}  margin {one.margin:.3g} ({one.criterion})  "
                f"relative L2 {m.relative_l2:.3g}, an honest run's {m.honest_relative_l2:.3g}"
            )
            if not one.passed:
                typer.echo(f"      {one.reason}")
        for bug in bugs:
            typer.echo(f"      the reference agrees if {bug}")
    if not judged.passed:
        raise typer.Exit(1)


def _read(dump: Path):
    from refsd.golden import dumps
    from refsd.golden.errors import BadInput
    from refsd.weights.files import open_weights

    if not dump.exists():
        raise BadInput(f"{dump}: no such file or folder")
    if dump.is_dir() or dump.suffix in dumps.SUFFIXES:
        return dumps.read(dump)
    return {name: tensor.values() for name, tensor in open_weights(dump).items()}


def _against_case(case, found, store: Path, numerics):
    from refsd.cli.golden import make_into
    from refsd.cli.model_files import model_files, open_store
    from refsd.engine import Reference
    from refsd.golden import verdict
    from refsd.golden.conform import Runner, causes, measure_case
    from refsd.model_diagnose import causes as model_causes
    from refsd.trajectory import JUDGES

    place = open_store(store)
    make_into(place, [case])
    truth = place.get(case.name).outputs
    found = _named(found, truth)
    inputs = case.realize()
    honest = Reference(numerics, model_files=model_files).run(case, inputs)
    measure = JUDGES[case.op].measure if case.op in JUDGES else measure_case
    metrics = measure(case, inputs, found, truth, honest, numerics)
    if verdict.judge(metrics).passed:
        return metrics, []
    runner = Runner(
        lambda numerics, deviations: Reference(numerics, deviations, model_files),
        lambda case: truth,
        judges=JUDGES,
        causes=functools.partial(model_causes, model_files=model_files),
    )
    return metrics, causes(runner, case, inputs, found, honest, numerics)


def _against_file(golden: Path, found, numerics):
    import numpy as np

    from refsd.golden.bounds import Bound
    from refsd.golden.metrics import measure, unwanted
    from refsd.golden.rounding import floor, unit

    truth = {name: np.asarray(y, np.float64) for name, y in _read(golden).items()}
    found = _named(found, truth)
    u = 64 * max(unit(numerics.storage_dtype), unit(numerics.compute_dtype))
    metrics = []
    for name, y in truth.items():
        # Sums lose with the size of their terms, not of their result: an element may err as a typical one does.
        size = np.maximum(np.abs(y), np.sqrt(np.mean(y**2)) if y.size else 0.0)
        limit = u * size + floor(numerics.storage_dtype)
        honest = y.astype(numerics.storage_dtype)
        channel = 1 if y.ndim == 4 else -1
        metrics.append(measure(name, found.get(name), y, honest, Bound(limit, limit / 8), channel))
    return metrics + [unwanted(name, found[name]) for name in found.keys() - truth.keys()]


def _named(found, truth):
    """The dump's tensors; where both hold a single one, its name is no matter."""
    return dict(zip(truth, found.values(), strict=True)) if len(found) == len(truth) == 1 else found
