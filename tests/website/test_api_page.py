"""The page of the API holds every function, parameter and example of the docstrings."""

import inspect

import api_pages
import pytest

import refsd

pytestmark = pytest.mark.site


@pytest.mark.parametrize("name", api_pages.FUNCTIONS)
def test_a_function_is_whole(name):
    page = api_pages.api_page()
    function = api_pages.FUNCTIONS[name]
    if name != "refsd.golden":  # also a package
        assert getattr(refsd, name.removeprefix("refsd.")) is function
    part = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    for parameter in inspect.signature(inspect.unwrap(function)).parameters:
        assert parameter in part
    text = inspect.getdoc(function)
    assert part.count(">>>") == text.count(">>>") > 0
    assert text.splitlines()[0] in part


def test_lists_are_tables_and_columns_stay_apart():
    def f(a, b):
        """Do it.

        a:    one | two,
              and more
        b, c: three
        """

    assert "| `a` | one \\| two, and more |" in api_pages.prose(f)
    assert "| `b, c` | three |" in api_pages.prose(f)
