"""refsd disagree: compare two engines with each other and with the reference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from refsd.cli.find_case import complete_case
from refsd.cli.json_output import JSON
from refsd.cli.parts import PARTS, part_files
from refsd.cli.picture_options import image_files, options, settings_of, takes
from refsd.golden.wording import counted

_A = typer.Argument(
    metavar="A",
    help="torch, torch-bf16, ggml[:LIBRARY], sdcpp[:SD_CLI], gguf-py, exec:PROGRAM, refsd[:PROFILE], "
    "dump:FILE[:PROFILE] or dump:FOLDER[:PROFILE] (FOLDER/CASE.safetensors).",
)
_B = typer.Argument(metavar="B", help="As A.")
_CASES = typer.Argument(
    None,
    metavar="[CASE]...",
    help="Globs: 'layer_norm/*' 'clip-l/clip/*'; or a folder of `refsd adopt`. None: every case.",
    autocompletion=complete_case,
)
_GOLDEN = typer.Option("goldens", "--store", help="Store of goldens; missing answers are computed.")
_NAMES = typer.Option(
    None,
    "--names",
    metavar="MINE=THEIRS|FILE",
    help="What a tensor of a dump is called in the reference, as for `refsd compare`. May be repeated.",
)
# Print at most this many differing cases; --json has all of them.
_SHOWN = 20
_MATCHES = 3


_PANEL, _PROMPT = "A whole picture", "Prompt of a picture to compare, instead of cases."
_PICTURE = (
    *options("prompt", panel=_PANEL, default=None, kind=str | None, help=_PROMPT),
    *options("model", "negative_prompt", "width", "height", "steps", "cfg_scale", panel=_PANEL),
    *options("guidance", "sampling_method", "scheduler", panel=_PANEL),
    *options("seed", panel=_PANEL, help="Of both sides."),
    *options("rng", "clip_skip", panel=_PANEL),
    *options("init_img", "strength", "mask"),
    *options("ref_image", kind=Path | None, help="The picture to edit, for pix2pix, FLUX.1 Kontext and FLUX.2."),
)
_PARTS = ("diffusion_model", "vae", "taesd", "clip_l", "clip_g", "t5xxl", "llm")
_FILES = {name: PARTS[name] for name in (*_PARTS, "vocab", "tokenizer")}


@takes(_PICTURE, _FILES)
def disagree(
    a: str = _A,
    b: str = _B,
    cases: list[str] = _CASES,
    store: str = _GOLDEN,
    names: list[str] = _NAMES,
    json: bool = JSON,
    **picture: Any,
) -> None:
    """Find out which of two engines is right, how far apart they are, where they begin to differ, and why.

    Both engines and the reference compute each case. The reference computes it in float64, and under the numerics
    that each engine declares. Two engines that differ may both conform: their numerics then explain the
    difference. If one is wrong, refsd names the first tap or output at which it makes an error of its own, and
    the known bug that explains it.

    With -p, a whole picture is compared. A and B are then conventions of `refsd txt2img --like` (sdcpp,
    diffusers), optionally with :PROFILE; sdcpp:SD_CLI for the program itself; torch, torch-f16 or torch-bf16 for
    diffusers' pipeline of a folder; or dumps of `refsd txt2img --taps`, as dump:FILE[:PROFILE][:CONVENTION].
    refsd compares their settings, then tokens, conditioning, noise levels, noise, every step, latent and pixels.
    The reference judges programs, pipelines and dumps under their own convention. The other options are those of
    `refsd txt2img`.

    Exit code 0: both conform (for a picture: and agree). 1: one is wrong, or they differ. 2: bad usage or input.
    """
    if picture["prompt"] is not None:
        from refsd.cli.disagree_picture import Model, run, show
        from refsd.numerics.errors import BadInput
        from refsd.weights.model_files import model_path

        if cases:
            raise BadInput(f"{cases[0]}: with --prompt a picture is compared, and no case; leave one of them out")
        if picture["seed"] < 0:
            raise BadInput(f"--seed {picture['seed']}: expected 0 or more: both sides draw with the same seed")
        parts = part_files(*(picture[name] for name in _PARTS))
        whole = picture["model"] and model_path(picture["model"])
        model = Model(whole, parts, picture["vocab"], picture["tokenizer"])
        _end(run(a, b, model, settings_of(picture), image_files(picture)), show, json)
        return
    _end(_by_case(a, b, cases, store, names), _print, json)


def _end(outcome, show: Callable, json: bool) -> None:
    """Print an outcome; exit with code 1 if the engines disagree."""
    import msgspec

    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(outcome), indent=1).decode())
    else:
        show(outcome)
    if not outcome.agree:
        raise typer.Exit(1)


def _by_case(a: str, b: str, cases: list[str] | None, store: str, names: list[str] | None):
    from refsd import __version__
    from refsd import cases as corpus
    from refsd.adoption import folder as adopted
    from refsd.commands.conform import STORE
    from refsd.disagreement import cases as by_case
    from refsd.engines.chosen import one_engine
    from refsd.engines.dump.engine import DumpEngine, give_names
    from refsd.goldens.judging import runner
    from refsd.goldens.making import answerable, make_into
    from refsd.numerics.errors import BadInput
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps
    from refsd.weights.model_files import open_store, trim_model_files

    given, folders = adopted.named(cases or ("*",))
    store = str(folders[0]) if len(folders) == len(given) == 1 and store == STORE else store
    chosen = answerable(corpus.select(*given))
    engines = [one_engine(a), one_engine(b)]
    dumps = [engine for engine in engines if isinstance(engine, DumpEngine)]
    give_names(dumps, names or ())
    if engines[0].name == engines[1].name:
        for engine, letter in zip(engines, "AB", strict=True):
            engine.name = f"{engine.name} ({letter})"
    single = [engine for engine in engines if getattr(engine, "of_one_case", False)]
    if single and len(chosen) > 1:
        raise BadInput(f"{single[0].name} is a dump of one case, and {len(chosen)} are asked for: name the case")
    taken = [case for case in chosen if all(engine.refuses(case) is None for engine in engines)]
    if not taken:
        refusals = [engine.refuses(chosen[0]) for engine in engines]
        raise BadInput(f"no case that both take; {chosen[0].name}: {'; '.join(filter(None, refusals))}")
    place = open_store(store)
    make_into(place, taken)
    judging = runner(lambda case: place.get(case.name).outputs)
    with compile_progress(), steps("disagree", len(chosen)) as advance:

        def done(compared) -> None:
            advance(compared.case)
            trim_model_files()

        outcome = by_case.disagree(judging, engines[0], engines[1], chosen, __version__, done)
    for dump in dumps:
        found = (("told by content", [*map(str, dump.matches)]), ("not judged, of unknown name", dump.unknown))
        for what, lines in found:
            shown = "; ".join(lines[:_MATCHES]) + ("; ..." if len(lines) > _MATCHES else "")
            if lines:
                typer.echo(f"{dump.name}: {counted(len(lines), 'tensor')} {what}: {shown}", err=True)
    return outcome


def _print(outcome) -> None:
    names = [f"{name} {version}" for name, version in outcome.engines.items()]
    typer.echo(f"{names[0]}\n{names[1]}")
    differing = [case for case in outcome.compared if case.outcome != "both conform"]
    for case in differing[:_SHOWN]:
        typer.echo()
        _print_case(case)
    if len(differing) > _SHOWN:
        typer.echo(f"... and {len(differing) - _SHOWN} more; --json has all")
    typer.echo()
    _print_conforming([case for case in outcome.compared if case.outcome == "both conform"])
    left = len(outcome.cases) - len(outcome.compared)
    if left:
        typer.echo(f"not compared: {counted(left, 'case')} that one of them does not take")
    for name in outcome.engines:
        typer.echo(_summary(outcome, name))


def _summary(outcome, name: str) -> str:
    """Summarise one engine's failures in a line, by cause, the most frequent first."""
    from collections import Counter

    sides = [side for case in outcome.compared for side in case.sides if side.engine == name]
    wrong = [side for side in sides if not side.conforms]
    if not wrong:
        return f"{name} conforms in all of {counted(len(sides), 'case')}"
    whys = Counter(f"{side.op}: {side.causes[0] if side.causes else 'not explained'}" for side in wrong)
    text = "; ".join(f"{why} ({n})" for why, n in whys.most_common(3)) + ("; ..." if len(whys) > 3 else "")
    return f"{name} is wrong in {len(wrong)} of {counted(len(sides), 'case')}: {text}"


def _print_case(case) -> None:
    from refsd.reports.cells import margin_text

    said = [
        f"{side.engine} is {'right' if side.conforms else 'wrong'} (margin {margin_text(side.margin)})"
        for side in case.sides
    ]
    typer.echo(f"{case.case}: {', '.join(said)}" + (": they agree with each other" if case.alike else ""))
    if case.distance is not None:
        apart = "not at all" if case.distance == 0 else f"by {case.distance:.2g}"
        typer.echo(f"    they differ {apart} (relative L2); rounding explains {case.explained:.2g}")
    parting = case.parting
    if parting is not None:
        before = f", after {counted(parting.before, 'tap')} that both have right" if parting.before else ""
        typer.echo(f"    they part at {parting.at}{before}")
        for engine, error in parting.own.items():
            typer.echo(
                f"        {engine} errs there by {error:.2g}, its numerics allow {parting.allowed[engine]:.2g}"
            )
    for side in case.sides:
        if not side.conforms:
            typer.echo(f"    {side.engine}: {side.reason}")


def _print_conforming(cases) -> None:
    if not cases:
        return
    known = [case for case in cases if case.distance is not None]
    same = sum(case.distance == 0 for case in known)
    equal = f", {same} with the same bits" if same else ""
    typer.echo(f"both conform in {counted(len(cases), 'case')}{equal}")
    farthest = max(known, key=lambda case: case.distance, default=None)
    if farthest is not None and farthest.distance:
        typer.echo(
            f"    most apart in {farthest.case}: {farthest.distance:.2g}, "
            f"which their numerics explain (up to {farthest.explained:.2g})"
        )
