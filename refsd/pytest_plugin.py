"""The fixture refsd_watch: a test fails where a module that it runs computes something wrong.

In conftest.py: pytest_plugins = ["refsd.pytest_plugin"]
"""

import contextlib
import importlib

import pytest


@pytest.fixture
def refsd_watch():
    """A function of a module, with the parameters of refsd.watch: judged until the test's end."""
    watch = importlib.import_module("refsd.watching").watch
    with contextlib.ExitStack() as stack:
        reports = []

        def attach(module, calls: int = 1, causes: bool = True):
            report = stack.enter_context(watch(module, calls, causes, show=None))
            reports.append(report)
            return report

        yield attach
    wrong = [str(report) for report in reports if not report.passed]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
