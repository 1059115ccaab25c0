"""Names that are like a known one."""

import pytest

from refsd.golden.wording import did_you_mean


@pytest.mark.parametrize(
    ("name", "meant"), [("dpmpp2m", "dpm++2m"), ("DPM++ 2M", "dpm++2m"), ("eulr", "euler"), ("xyz", "")]
)
def test_a_name_of_another_spelling_comes_before_one_that_is_near(name, meant):
    assert did_you_mean(name, ["dpm2", "dpm++2m", "euler"]) == (f' (did you mean "{meant}"?)' if meant else "")
