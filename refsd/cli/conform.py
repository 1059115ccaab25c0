"""refsd conform: judge engines against the goldens."""

from pathlib import Path

import typer

from refsd.cli.golden import CASES, DASK
from refsd.cli.numba_threads import import_numba_for

_WAIVERS = Path("refsd-waivers.toml")
_ENGINES = typer.Argument(
    None,
    metavar="[ENGINE]...",
    help="gguf-py, torch[@DEVICE], ggml[:LIBRARY][@DEVICE], sdcpp[:SD_CLI][@DEVICE], exec:PROGRAM, "
    "dump:FOLDER[:PROFILE], a1111:URL, comfyui:URL, onnxruntime[@PROVIDER], onnx-reference, openvino, tvm, iree, "
    "tinygrad, comfy-kitchen, sdnq, refsd[:PROFILE]. None: all that are there. `refsd engines` lists devices.",
)
_GOLDEN = typer.Option("goldens", help="Store of goldens: a folder, a packed file, a URL; what it lacks is made.")
_JSON = typer.Option(
    None,
    help="Write the report with every metric as JSON to this file too; not to standard output (-).",
)
_JUNIT = typer.Option(None, help="Write JUnit XML to this file too; not to standard output (-).")
_REPORT = typer.Option(
    Path("refsd-report"), "--report", "-o", help="Folder for report.html, report.md, conform.json and junit.xml."
)
_KEEP = typer.Option(
    None,
    help="Folder for the outputs of failing answers, beside the truth and the honest run; it is replaced.",
    show_default="failing/ in the report's folder",
)
_WAIVED = typer.Option(None, help=f"Accepted deviations and cases; {_WAIVERS} if it is there.")
_BASELINE = typer.Option(None, help="An earlier conform.json: only what did not fail there fails the run.")
_LAST_FAILED = typer.Option(False, "--last-failed", help="Judge only what failed in the report's folder.")
_TAPS = typer.Option(
    "*",
    "--taps",
    help="Judge only the taps whose name matches this glob, as 'input_blocks.1.*'. Models of full size are asked "
    "for theirs only with it.",
    show_default="all taps",
)
_PROFILE = typer.Option(
    None,
    help="Judge the cases of a profile, as 2026.11/sd15, and say whether it is met: `refsd corpus` lists them.",
)
_SUBMISSION = typer.Option(None, help="Write the run as one file that others verify: `refsd verify-submission`.")
_STATEMENT = typer.Option("", help="Your words in the submission: who, which build, how it was run.")
_DEVICE = typer.Option("", help="What the engines compute on, if they do not say so: 'RTX 4090'.")
_DRIVER = typer.Option("", help="Its driver, for the submission.")
_SHARD = typer.Option(None, metavar="K/N", help="Judge part K of N: for the jobs of a CI.")
_PASTE = typer.Option(False, "--paste", help="Print a few lines of Markdown for an issue, in place of the report.")
_TABLE = typer.Option(False, "--table", help="Print the table of operations by engines, even where all conform.")
_PROCESSES = typer.Option(
    None,
    min=1,
    help="Judge in so many processes, each with its engines.",
    show_default="one a core; 1 for few cases, models of full size, your own engines, devices",
)
_NAMES = typer.Option(
    None,
    "--names",
    metavar="MINE=THEIRS|FILE",
    help="What a tensor of a dump is called in the reference, as for `refsd compare`. May be repeated.",
)
_TIMEOUT = typer.Option(
    None, min=0.1, metavar="SECONDS", help="Give up on an answer after this time.", show_default="600 for exec:"
)
_TWICE = typer.Option(
    False, "--twice", help="Ask every case twice: a race or memory that is not written shows only now and then."
)
_CAUSES = typer.Option(
    True, "--causes/--no-causes", help="Search for what explains a failure; without, verdicts and places alone."
)
_MIN_CASES = typer.Option(None, min=0, help="Fail if an engine runs fewer cases than this.")


def conform(
    engines: list[str] = _ENGINES,
    cases: list[str] = CASES,
    golden: str = _GOLDEN,
    json: Path = _JSON,
    junit: Path = _JUNIT,
    report: Path = _REPORT,
    keep: Path = _KEEP,
    waivers: Path = _WAIVED,
    baseline: Path = _BASELINE,
    last_failed: bool = _LAST_FAILED,
    min_cases: int = _MIN_CASES,
    taps: str = _TAPS,
    profile: str = _PROFILE,
    shard: str = _SHARD,
    submission: Path = _SUBMISSION,
    statement: str = _STATEMENT,
    device: str = _DEVICE,
    driver: str = _DRIVER,
    table: bool = _TABLE,
    paste: bool = _PASTE,
    dask: str = DASK,
    processes: int = _PROCESSES,
    timeout: float = _TIMEOUT,
    names: list[str] = _NAMES,
    twice: bool = _TWICE,
    causes: bool = _CAUSES,
) -> None:
    """Judge engines on every case, each under the numerics that it declares.

    The report begins with the verdict and the causes. report.html is a page to
    read offline, report.md fits the summary of a CI job, conform.json is what
    --baseline and `refsd diff` read. After Ctrl-C or SIGTERM the report holds what
    was judged until then, and says that it is partial. With --dask the workers of a
    cluster judge, each the engines that it has, and the report is the same.

    Exit code 0: all conform. 1: one does not, or ran too few cases. 2: bad usage or bad input. 130: interrupted.
    """
    if profile is None and not last_failed:
        import_numba_for(cases)
    from refsd.cli.ending import INTERRUPTED
    from refsd.commands.conform import ConformRequest, NothingFailed
    from refsd.commands.conform import conform as run
    from refsd.reports.markdown import pasted
    from refsd.reports.terminal import print_report

    request = ConformRequest(
        engines or (),
        cases,
        golden,
        report,
        json,
        junit,
        keep,
        waivers,
        baseline,
        last_failed,
        min_cases,
        taps,
        profile,
        shard,
        submission,
        statement,
        device,
        driver,
        dask,
        processes,
        timeout,
        names or (),
        twice,
        causes,
    )
    ended = run(request)
    if isinstance(ended, NothingFailed):
        typer.echo(f"nothing failed in {ended.path}, so nothing is judged")
        return
    if paste:
        typer.echo(pasted(ended.report, ended.arguments))
    else:
        print_report(ended.report, report, table, ended.arguments, ended.store)
    for line in ended.met:
        typer.echo(line)
    if ended.report.partial:
        raise typer.Exit(INTERRUPTED)
    if not ended.report.conforms or not ended.report.engines:
        raise typer.Exit(1)
