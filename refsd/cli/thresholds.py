"""refsd golden thresholds: the smallest changes that a model's case sees."""

import typer

from refsd.cli.find_case import complete_case
from refsd.cli.json_output import JSON
from refsd.cli.numerics import PROFILES

_NUMERICS = ("float32", "ggml-cpu", "torch-f16", "torch-bf16")
_CASE = typer.Argument(
    help="The name of a model's case: `refsd golden list` shows them.", autocompletion=complete_case
)
_PROFILES = typer.Option(
    list(_NUMERICS), "--numerics", help=f"How the engine computes: {', '.join(PROFILES)}. May be repeated."
)


def thresholds(name: str = _CASE, numerics: list[str] = _PROFILES, json: bool = JSON) -> None:
    """Show how small a change a case sees, by its outputs alone and by the taps of its layers.

    An engine is simulated that computes as --numerics says, with one change; the size of the change is bisected.
    It takes minutes. "-" stands for a change that is not seen at any size that is tried.
    """
    import json as json_text

    from refsd import cases as corpus
    from refsd.golden.wording import did_you_mean
    from refsd.judges.model import ModelJudge
    from refsd.judges.thresholds import thresholds as measured
    from refsd.numerics import profiles
    from refsd.numerics.errors import BadInput
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps
    from refsd.weights.model_files import model_files

    if name not in corpus.CASES:
        raise BadInput(f"no case {name!r}{did_you_mean(name, corpus.CASES)}: `refsd golden list` shows the cases")
    for profile in numerics:
        if profile not in PROFILES:
            raise BadInput(f"--numerics {profile}: expected one of {', '.join(PROFILES)}")
    case, kind = corpus.CASES[name], ModelJudge(model_files)
    if case.model is None or not kind.asks_for_taps(case):
        raise BadInput(f"{name}: thresholds are measured of cases of tiny models")
    columns = {}
    with compile_progress(), steps("numerics", len(numerics)) as advance:
        for profile in numerics:
            columns[profile] = {t.change: t for t in measured(kind, case, profiles.PROFILES[profile])}
            advance(profile)
    changes = list(next(iter(columns.values())))
    if json:
        rows = {c: {p: {"outputs": t[c].outputs, "taps": t[c].taps} for p, t in columns.items()} for c in changes}
        typer.echo(json_text.dumps(rows, indent=1))
        return
    typer.echo(f"| {name}: the smallest s that is seen, by outputs / by taps | {' | '.join(numerics)} |")
    typer.echo(f"|---|{'---|' * len(numerics)}")
    for change in changes:
        cells = (f"{_shown(t[change].outputs)} / {_shown(t[change].taps)}" for t in columns.values())
        typer.echo(f"| {change} | {' | '.join(cells)} |")


def _shown(size: float | None) -> str:
    return "-" if size is None else f"{size:.1g}"
