"""refsd golden show --mutants, refsd golden redundant: known bugs against cases."""

import time
from typing import TYPE_CHECKING

import typer

from refsd.cli.find_case import complete_case, unknown_case
from refsd.cli.json_output import JSON, print_json

if TYPE_CHECKING:
    from refsd.golden.mutants import Trial

_NAME = typer.Argument(None, help="A case, an operation or a model's component.", autocompletion=complete_case)


def tried(name: str | None) -> tuple[list["Trial"], dict[str, float]]:
    """Judge every known bug on the cases of an operation, or of all -> trials, seconds of each case.

    Whole models take minutes, so they run only if a case or component is named.
    """
    from refsd import cases as corpus
    from refsd.golden.mutants import try_all
    from refsd.judges import judges
    from refsd.numerics.errors import BadInput
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps
    from refsd.weights.model_files import model_files

    chosen = [case for case in corpus.select() if case.op == name or (name is None and case.model is None)]
    chosen += [corpus.CASES[name]] if name in corpus.CASES else []
    if not chosen:
        raise BadInput(
            unknown_case(name, [*dict.fromkeys(case.op for case in corpus.CASES.values()), *corpus.CASES])
        )
    trials, seconds, kinds = [], {}, judges(model_files)
    with compile_progress(), steps("mutants", len(chosen)) as advance:
        for case in chosen:
            begun = time.perf_counter()
            trials += try_all(kinds.of(case), case)
            seconds[case.name] = time.perf_counter() - begun
            advance(case.name)
    return trials, seconds


def show_mutants(name: str | None, json: bool) -> None:
    """Print which known bugs each case detects, of all operations or of `name`."""
    from refsd.golden.mutants import kill_table

    trials, _ = tried(name)
    if json:
        print_json([{"case": t.case.name, "mutant": t.mutant, "killed": t.killed} for t in trials])
    else:
        typer.echo(kill_table(trials))


def redundant(name: str = _NAME, json: bool = JSON) -> None:
    """List the cases that add nothing to the others of their operation, and the seconds that each takes.

    Such a case sees no known bug that no other case sees, and has no trait (a type, data, a parameter, a class of
    sizes) and no pair of traits of its own. Of two cases that could go, the slower one goes. Without a name, for
    all operations, trajectories and stages; the models' components take minutes each and are asked for by name.
    """
    from refsd.golden.redundant_cases import standings
    from refsd.golden.wording import counted

    trials, seconds = tried(name)
    found = standings(trials, seconds)
    if json:
        print_json([{**each._asdict(), "seconds": round(seconds[each.case], 3)} for each in found])
        return
    gone = [each for each in found if not each.kept]
    for each in gone:
        typer.echo(
            f"{each.case}: {counted(each.kills, 'known bug')}, all seen by others; {seconds[each.case]:.2f} s"
        )
    saved = sum(seconds[each.case] for each in gone)
    typer.echo(
        f"{len(gone)} of {counted(len(found), 'case')} add nothing; {saved:.1f} of {sum(seconds.values()):.1f} s"
    )
