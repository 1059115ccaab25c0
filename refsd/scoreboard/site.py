"""Write the board as a folder of pages."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from refsd.golden.output_file import replaced_folder
from refsd.numerics.errors import BadInput
from refsd.scoreboard.pages import add_page, board, run_page
from refsd.scoreboard.runs import RUNS, Run, encode


def gathered(runs: Iterable[Run]) -> list[Run]:
    """Sort runs, each once. Raises BadInput where there is none."""
    by_slug = {run.slug: run for run in runs}
    if not by_slug:
        raise BadInput("no report with a judged case, so there is nothing to show")
    return sorted(by_slug.values(), key=lambda run: run.order)


def write(folder: Path, runs: Sequence[Run]) -> int:
    """Write the pages: index.html, add.html, runs/*.html, and runs.json. -> number of pages

    Raises BadInput if the folder has files that no board wrote.
    """
    with replaced_folder(folder, RUNS) as part:
        (part / "runs").mkdir()
        for run in runs:
            (part / "runs" / f"{run.slug}.html").write_text(run_page(run), "utf-8")
        (part / "index.html").write_text(board(runs), "utf-8")
        (part / "add.html").write_text(add_page(), "utf-8")
        (part / RUNS).write_bytes(encode(runs))
    return len(runs) + 2
