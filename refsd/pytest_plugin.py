"""The pytest plugin: cases of refsd as tests of an engine's own suite, and refsd_watch for living torch programs.

pytest loads this module wherever refsd is installed, so it imports nothing of refsd before a test asks for it.
docs/python.md shows its use.
"""

import contextlib
import fnmatch
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

_MARK = "refsd_cases"
_ARGUMENTS = ("numerics", "exclude", "xfail")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("refsd", "cases of refsd")
    group.addoption(
        "--refsd-cases", action="append", metavar="GLOB", help="only these cases of refsd; may be repeated"
    )
    group.addoption(
        "--refsd-numerics", metavar="PROFILE", help="numerics under which refsd judges, in place of the marks'"
    )
    group.addoption(
        "--refsd-watch",
        nargs="?",
        const="*",
        metavar="GLOB",
        help="judge each operation of torch that a test calls (modules of this glob); a wrong one fails the test",
    )


def pytest_configure(config: pytest.Config) -> None:
    glob = config.option.refsd_watch
    if glob is not None and Path(glob).exists():
        raise pytest.UsageError(f"--refsd-watch {glob}: a path, not modules; for all modules: --refsd-watch='*'")
    config.addinivalue_line(
        "markers",
        f"{_MARK}(*globs, numerics='float32', exclude=(), xfail={{}}): run the test once for each of these cases "
        "of refsd, as the fixture refsd_case; xfail: glob of known failures -> reason",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "refsd_case" not in metafunc.fixturenames:
        return
    from refsd.numerics.errors import BadInput

    mark, option = metafunc.definition.get_closest_marker(_MARK), metafunc.config.option
    try:
        names = _chosen(mark, option.refsd_cases)
    except BadInput as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None
    assert mark is not None
    numerics, known = option.refsd_numerics or mark.kwargs.get("numerics", "float32"), mark.kwargs.get("xfail", {})
    cases = [pytest.param((name, numerics), id=name, marks=_xfail(name, known)) for name in names]
    metafunc.parametrize("refsd_case", cases, indirect=True)


def _chosen(mark: pytest.Mark | None, only: Sequence[str] | None) -> list[str]:
    """The names of the cases that a mark asks for.

    only: globs of the command line

    Raises BadInput without a mark, for an argument that it does not take, and for a glob that matches no case.
    """
    from refsd.cases import select
    from refsd.numerics.errors import BadInput

    if mark is None or not mark.args or not all(isinstance(glob, str) for glob in mark.args):
        raise BadInput(f"name the cases of refsd_case by globs: @pytest.mark.{_MARK}('conv2d/*')")
    if unknown := mark.kwargs.keys() - set(_ARGUMENTS):
        raise BadInput(f"{_MARK} takes {', '.join(_ARGUMENTS)}, and no {', '.join(sorted(unknown))}")
    names = [case.name for case in select(*mark.args)]
    if only is not None:
        wanted = {case.name for case in select(*only)}
        names = [name for name in names if name in wanted]
    left_out = mark.kwargs.get("exclude", ())
    return [name for name in names if not any(fnmatch.fnmatchcase(name, glob) for glob in left_out)]


def _xfail(name: str, known: Mapping[str, str]) -> list[pytest.MarkDecorator]:
    reasons = [reason for glob, reason in known.items() if fnmatch.fnmatchcase(name, glob)]
    return [pytest.mark.xfail(reason="; ".join(reasons), strict=True)] if reasons else []


class CaseUnderTest:
    """A case as the fixture refsd_case gives it: the fields of refsd.golden, computed when first read.

    name:     of the case
    numerics: under which answers are judged
    """

    def __init__(self, name: str, numerics: str):
        self.name, self.numerics = name, numerics
        self._golden = None

    def __getattr__(self, field: str):
        if field.startswith("_"):
            raise AttributeError(field)
        if self._golden is None:
            self._golden = importlib.import_module("refsd.api").golden(self.name, self.numerics)
        return getattr(self._golden, field)

    def __repr__(self) -> str:
        return f"<refsd case {self.name}, {self.numerics}>"

    def judge(self, arrays, taps=None):
        """Return the verdict of refsd.judge."""
        return importlib.import_module("refsd.api").judge(self.name, arrays, self.numerics, taps)

    def check(self, arrays, taps=None) -> None:
        """Fail the test as refsd.assert_conforms does."""
        __tracebackhide__ = True
        importlib.import_module("refsd.api").assert_conforms(self.name, arrays, self.numerics, taps)


@pytest.fixture
def refsd_case(request: pytest.FixtureRequest) -> CaseUnderTest:
    """A case of refsd: its inputs and parameters for an engine, and `check` for the engine's answer."""
    return CaseUnderTest(*request.param)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """With --refsd-watch: fail a test whose operations of torch are wrong. A failure of its own comes first."""
    glob = item.config.option.refsd_watch
    if glob is None:
        return (yield)
    with importlib.import_module("refsd.watching").watch(by="operations", modules=glob, show=None) as report:
        result = yield
    if report.wrong_calls:
        pytest.fail(str(report), pytrace=False)
    return result


@pytest.fixture
def refsd_watch():
    """Return a function with the parameters of refsd.watch; it judges what torch computes until the test ends."""
    watch = importlib.import_module("refsd.watching").watch
    with contextlib.ExitStack() as stack:
        reports = []

        def attach(module=None, calls: int = 1, causes: bool = True, **options):
            report = stack.enter_context(watch(module, calls, causes, show=None, **options))
            reports.append(report)
            return report

        yield attach
    wrong = [str(report) for report in reports if not report.passed]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
