"""refsd disagree on a whole picture: run the comparison, and print its result."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import typer

from refsd.golden.wording import counted

# Of a longer run of stages with the same outcome, print only the first and the last; --json has all of them.
_SHOWN = 12
_CONVENTION = "convention."


class Model(NamedTuple):
    """The model's files. parts: flag -> file"""

    model: Path | None
    parts: dict[str, Path]
    vocab: Path | None
    tokenizer: Path | None


def run(a: str, b: str, model: Model, settings, image_files: Mapping[str, Path] = MappingProxyType({})):
    """Compare two ways to draw a picture. -> PictureDisagreement

    settings:    refsd.pipelines.Settings
    image_files: key of IMAGE_FLAGS -> file

    Raises BadInput for a side, a model or a setting that cannot be used.
    """
    import functools
    import shutil

    from refsd import __version__
    from refsd.disagreement.pictures import Side, disagree
    from refsd.engines.sdcpp.picture import draw, flags
    from refsd.engines.sdcpp.program import Program
    from refsd.golden.engine import EngineFailure
    from refsd.golden.input_file import note_input
    from refsd.golden.named_numerics import named
    from refsd.numerics.errors import BadInput
    from refsd.numerics.machine import memory
    from refsd.numerics.profiles import PROFILES
    from refsd.pipelines.conditioning_images import IMAGE_FLAGS, ConditioningImages, read_image
    from refsd.pipelines.pipeline import open_pipeline
    from refsd.pipelines.plan import check_ranges, resolve
    from refsd.pipelines.prompts import Tokenizers
    from refsd.pipelines.report import Report
    from refsd.progress.compiling import compile_progress
    from refsd.weights import open_checkpoint

    sides = Side.of(a), Side.of(b)
    for side in sides:
        check_ranges(settings._replace(like=side.convention))
        if side.dump is not None:
            note_input(side.dump)
        if side.draws and image_files:
            raise BadInput(f"{side.name}: an engine is looked into only where it draws without {min(image_files)}")
    named_images = {IMAGE_FLAGS[flag]: read_image(flag, path) for flag, path in image_files.items()}
    images = ConditioningImages()._replace(**named_images)
    checkpoint = open_checkpoint(model.model, model.parts)
    tokenizers = Tokenizers(model.vocab, model.tokenizer, model.model)

    @functools.cache
    def opened(profile: str):
        return open_pipeline(checkpoint, tokenizers, named(profile, []), memory() // 4)

    def plan_of(convention: str, profile: str, **changes):
        pipe = opened(profile)
        return pipe, resolve(pipe, settings._replace(like=convention, **changes), images)

    def drawn(side: Side):
        try:
            return by_diffusers(side) if side.program is None else by_program(side, side.program)
        except (EngineFailure, OSError) as error:
            raise BadInput(f"{side.name}: {error}") from None

    def by_diffusers(side: Side):
        from refsd.engines.torch.drawing import draw

        if model.model is None or model.parts:
            raise BadInput(f"{side.name}: diffusers draws from a folder alone: give it as -m")
        return draw(model.model, PROFILES[side.profile].storage, settings, plan_of(side.convention, "float64")[1])

    def by_program(side: Side, program: Path):
        place = Path(shutil.which(program) or program)
        named_files = {"-m": model.model, **model.parts}
        args = [
            word for flag, file in named_files.items() if file is not None for word in (flag, str(file.absolute()))
        ]
        return draw(Program(place), [*args, *flags(settings)], *plan_of(side.convention, "float64"))

    report = Report(verbose=False)
    try:
        with compile_progress():
            return disagree(sides, plan_of, drawn, __version__, report.now)
    finally:
        report.status.stop()


def show(outcome) -> None:
    typer.echo(f"A: {outcome.a}\nB: {outcome.b}\n")
    typer.echo("settings that differ:" if outcome.settings else "every setting is the same")
    own = [setting for setting in outcome.settings if not setting.name.startswith(_CONVENTION)]
    for setting in own:
        typer.echo(f"    {setting.name:14} {setting.a}  |  {setting.b}")
    rest = [setting.name.removeprefix(_CONVENTION) for setting in outcome.settings if setting not in own]
    if rest:
        typer.echo(
            f"    and by convention {counted(len(rest), 'rule')}: those that act are named below; --json has all"
        )
    typer.echo()
    _stages(outcome)
    typer.echo()
    for root in outcome.roots:
        why = f": {'; '.join(root.causes)}" if root.causes else ""
        typer.echo(f"they part at the {root.title}{why}")
    if outcome.inherited:
        typer.echo(outcome.inherited)
    for side, stage in outcome.wrong.items():
        typer.echo(f"{side} is wrong first at {stage}: {outcome.reasons[side]}")
    judged = {side for stage in outcome.stages for side in stage.margins}
    for side in judged - outcome.wrong.keys():
        typer.echo(f"{side} conforms to the reference under its own convention")
    if outcome.agree:
        typer.echo("they agree: nothing differs by more than their numerics explain")


def _stages(outcome) -> None:
    shown = [stage for stage in outcome.stages if stage.compared]
    left = [stage.title for stage in outcome.stages if not stage.compared]
    roots = {root.stage for root in outcome.roots}
    last = len(shown) - 2
    cut = [i for i, stage in enumerate(shown) if i < _SHOWN or i >= last or stage.name in roots]
    for before, i in zip([-1, *cut], cut, strict=False):
        if i > before + 1:
            typer.echo(f"    ... {i - before - 1} more; --json has all")
        typer.echo(_line(shown[i]))
    if left:
        typer.echo(
            f"in one of them alone: {counted(len(left), 'stage')}: {', '.join(left[:3])}"
            + ", ..." * (len(left) > 3)
        )


def _line(stage) -> str:
    if stage.distance is None:
        one, other = (list(shape) for shape in stage.shapes.values())
        text = f"shapes {one} and {other}" if one != other else "not finite"
    elif stage.distance == 0:
        text = "the same bits"
    else:
        text = f"{stage.distance:.2g} apart, rounding explains {stage.explained:.2g}"
    margins = "".join(f"; margin of {side} {margin:.2g}" for side, margin in stage.margins.items())
    return f"  {'part' if stage.parts else 'same'}  {stage.title:38} {text}{margins}"
