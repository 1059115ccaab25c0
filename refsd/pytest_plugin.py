"""The pytest fixture refsd_watch: fail a test if a module that it runs computes a wrong result.

In conftest.py: pytest_plugins = ["refsd.pytest_plugin"]
"""

import contextlib
import importlib

import pytest


@pytest.fixture
def refsd_watch():
    """Return a function with the parameters of refsd.watch; it judges a module's calls until the test ends."""
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
