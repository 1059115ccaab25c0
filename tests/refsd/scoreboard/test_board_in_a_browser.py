"""The board in a real browser: its script runs under its own policy, filters rows, and fits a phone."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from sample_reports import EPS, fails, report, result

from refsd.reports.stored import encode
from refsd.scoreboard.runs import read
from refsd.scoreboard.site import gathered, write

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    reports = [
        report(fails("conv2d/a", EPS), result("silu/a"), date="2026-10-01"),
        report(result("conv2d/a"), result("silu/a"), date="2026-11-01"),
        report(fails("conv2d/a", EPS, engine="torch"), result("silu/a", engine="torch"), date="2026-11-01"),
    ]
    runs = []
    for i, one in enumerate(reports):
        (folder / f"{i}.json").write_bytes(encode(one))
        runs += read(folder / f"{i}.json")
    write(folder / "site", gathered(runs))

    def open_in_browser(*flags, asked=""):
        command = [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        command += [*flags, f"file://{folder / 'site' / 'index.html'}{asked}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return open_in_browser


@pytest.mark.parametrize(
    ("asked", "engines", "operations"),
    [
        ("", ["ggml 2026-11", "torch 2026-11"], ["conv2d", "silu"]),
        ("?filter=torch&op=conv", ["torch 2026-11"], ["conv2d"]),
        ("?only=good", ["ggml 2026-11"], ["conv2d", "silu"]),
        ("?filter=none&op=activations", [], ["silu"]),
    ],
)
def test_the_filters_show_what_fits(board, asked, engines, operations):
    done = board("--dump-dom", "--enable-logging=stderr", asked=asked)
    assert "Content Security Policy" not in done.stderr and "Uncaught" not in done.stderr
    shown = re.findall(
        r'<tr data-bad="\d+"[^>]*?( hidden="")?><th scope="row"><a[^>]*>(\w+)</a>.*?(2026-\d+)', done.stdout
    )
    assert [f"{name} {month}" for hidden, name, month in shown if not hidden] == engines
    ops = done.stdout.partition('id="ops"')[2]
    rows = re.findall(r'<tr( hidden="")?><th scope="row">(\w+)</th>', ops)
    assert [name for hidden, name in rows if not hidden] == operations
    assert ('id="empty" hidden' in done.stdout) == bool(engines)


@pytest.mark.parametrize(("width", "dark"), [(400, False), (1300, True)])
def test_light_and_dark_wide_and_narrow(board, tmp_path, width, dark):
    flags = ["--force-dark-mode"] if dark else []
    board(*flags, f"--screenshot={tmp_path / 'page.png'}", f"--window-size={width},800", "--hide-scrollbars")
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("L")).astype(int)
    assert (np.median(pixels) < 60) == dark
    assert (np.abs(pixels - int(np.median(pixels))) > 100).sum() > 2000  # text that stands out
    assert np.ptp(pixels[100:, -5:]) < 20  # the page itself does not scroll sideways: its margin is empty
