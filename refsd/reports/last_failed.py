"""Select the answers that failed in an earlier report, so that only they are judged again."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from refsd.golden.case import Case
from refsd.golden.engine import Engine
from refsd.golden.input_file import inputs_of_a_run
from refsd.golden.report import Pair, Report, Result
from refsd.numerics.errors import BadInput
from refsd.reports import stored
from refsd.reports.changes import failing


class LastFailed(NamedTuple):
    """The failures of an earlier report.

    path:  the earlier report's file, which the new report replaces
    pairs: (engine, case) of each failure
    """

    path: Path
    report: Report
    pairs: Sequence[Pair]

    @classmethod
    def read(cls, path: Path, globs: Sequence[str]) -> "LastFailed":
        """Read an earlier report. globs: the option --cases

        Raises BadInput if --cases is given: the new report would lose the other failures.
        """
        if list(globs) != ["*"]:
            raise BadInput("--last-failed judges every case that failed: leave out --cases")
        with inputs_of_a_run():  # a separate list of input files, because this run will overwrite this one
            report = stored.read(path)
        return cls(path, report, failing(report))

    def cases(self, known: Mapping[str, Case]) -> list[Case]:
        """List the cases that failed. Raises BadInput if one no longer exists."""
        names = dict.fromkeys(case for _, case in self.pairs)
        for name in names:
            if name not in known:
                raise BadInput(f"{self.path}: {name} failed and is no longer a case: run without --last-failed")
        return [known[name] for name in names]

    def engines(self, groups: Mapping[str, Sequence[Engine]]) -> dict[str, list[Engine]]:
        """Keep only the engines that failed. Raises BadInput if one of them is missing."""
        failed = dict.fromkeys(engine for engine, _ in self.pairs)
        there = {engine.name for group in groups.values() for engine in group}
        for name in failed:
            if name not in there:
                raise BadInput(f"{self.path}: {name} failed and is not among the engines: name it as you did then")
        kept = {argument: [e for e in group if e.name in failed] for argument, group in groups.items()}
        return {argument: group for argument, group in kept.items() if group}

    def wants(self, engine: str, case: str) -> bool:
        return (engine, case) in self.pairs

    def left(self, judged: Iterable[Result]) -> list[Result]:
        """Return the earlier results of failures that were not judged again, so that the new report keeps them."""
        done = {(r.engine, r.case) for r in judged}
        return [r for r in self.report.results if not r.conforms and (r.engine, r.case) not in done]
