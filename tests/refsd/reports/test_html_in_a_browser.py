"""The page in a real browser: its script runs under its own policy; it is dark where the reader wants it dark."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from sample_reports import EPS, fails, report, result

from refsd.golden.report import RIGHT, WRONG, Step
from refsd.reports.html import html

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    way = [Step("layers.0.norm", RIGHT, 0.1), Step("layers.1.norm", WRONG, 9.0), Step("layers.2.norm", RIGHT, 0.1)]
    passing = [result(f"silu/{i}") for i in range(5)]
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    odd = fails("clip/a", EPS, way=way, reason="<script>document.title='owned'</script>")
    path.write_text(html(report(odd, *passing), {}), "utf-8")

    def open_in_browser(*flags, anchor=""):
        command = [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        command += [*flags, f"file://{path}{anchor}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return open_in_browser


def test_the_script_folds_what_passes_and_opens_what_is_linked(page):
    done = page("--dump-dom", "--enable-logging=stderr", anchor="#a0")
    assert "Content Security Policy" not in done.stderr and "Uncaught" not in done.stderr
    folded = re.findall(r'<button type="button" aria-expanded="(\w+)">(\w+)', done.stdout)
    assert folded == [("true", "clip"), ("false", "silu")]
    assert len(re.findall(r"<tr hidden", done.stdout)) == 5
    assert re.search(r'<details id="a0" class="answer" open', done.stdout)
    assert "<title>refsd: does not conform" in done.stdout


@pytest.mark.parametrize(("flags", "dark"), [((), False), (("--force-dark-mode",), True)])
def test_light_and_dark(page, tmp_path, flags, dark):
    page(*flags, f"--screenshot={tmp_path / 'page.png'}", "--window-size=900,700")
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("L"))
    assert (np.median(pixels) < 60) == dark
    assert (np.abs(pixels.astype(int) - int(np.median(pixels))) > 100).sum() > 2000  # text that stands out
