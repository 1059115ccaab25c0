"""The bar of counted steps: nothing on stderr where it is no terminal."""

import pytest

from refsd.progress.steps import steps


def test_quick_work_prints_nothing(capsys):
    with pytest.raises(KeyError), steps("goldens", 2) as advance:
        advance("silu")
        raise KeyError
    assert capsys.readouterr() == ("", "")
