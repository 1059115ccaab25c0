"""Pages as Chromium draws them: no equation, figure or line of code is cut off."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.site

# Boxes in the article that hide a part of what they hold, or reach beyond the window; each equation in its box.
_SCRIPT = """
const cut = [];
const tell = (element, why) => cut.push(why + ": " + element.tagName.toLowerCase() + "." + element.className + " "
  + element.textContent.trim().slice(0, 60));
const scrolls = element => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
const article = document.querySelector("article");
for (const element of article.querySelectorAll("*")) {
  const style = getComputedStyle(element), box = element.getBoundingClientRect();
  if (!box.width || style.visibility == "hidden" || element.closest(".visually-hidden")) continue;
  if (["hidden", "clip"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1)
    tell(element, "hides its right end");
  let outer = element;
  // Only up to the article: the theme lets that scroll.
  while (outer !== article && !scrolls(outer)) outer = outer.parentElement;
  if (outer === article && box.right > document.documentElement.clientWidth + 1)
    tell(element, "reaches beyond the window");
}
for (const aligned of article.querySelectorAll(".highlight-text pre"))
  if (getComputedStyle(aligned).whiteSpace != "pre") tell(aligned, "breaks lines of what is aligned");
for (const row of article.querySelectorAll("thead"))
  if (row.getBoundingClientRect().height && !row.textContent.trim()) tell(row, "is an empty heading");
for (const equation of article.querySelectorAll("math[display=block]")) {
  const box = equation.getBoundingClientRect(), holder = equation.parentElement.getBoundingClientRect();
  if (box.height > holder.height + 1) tell(equation, "is higher than its box");
  const left = box.left - holder.left, right = holder.right - box.right;
  if (!scrolls(equation.parentElement) && (left < -1 || right < -1)) tell(equation, "is cut off");
  if (left > 4 * Math.max(right, 8)) tell(equation, "stands at the right edge");
}
parent.postMessage([document.documentElement.clientWidth, cut], "*");
"""
# Chromium's windows are at least 500 pixels wide, frames are not.
_FRAME = """<iframe src="{page}" style="width: {width}px; height: 2000px; border: 0"></iframe><script>
addEventListener("message", told => {{
  document.body.innerHTML = "<pre id=cut></pre>";
  document.getElementById("cut").textContent = JSON.stringify(told.data);
}});
</script>"""
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=4000"),
)


WIDTHS = 1300, 800, 400


def cut_off(page: Path, width: int, profile: Path) -> list[str]:
    """Return what a page of this width hides, with why."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "install chromium"
    copy = page.with_name(f"rendered-{page.name}")
    copy.write_text(page.read_text(encoding="utf-8") + f"<script>{_SCRIPT}</script>", encoding="utf-8")
    frame = page.with_name(f"frame-{page.name}")
    frame.write_text(_FRAME.format(page=copy.name, width=width), encoding="utf-8")
    where = [f"--user-data-dir={profile}", "--window-size=1400,2000", "--dump-dom", frame.as_uri()]
    done = subprocess.run([chromium, *_QUIET, *where], capture_output=True, text=True, timeout=120)
    copy.unlink()
    frame.unlink()
    (found,) = re.findall(r'<pre id="cut">(.*?)</pre>', done.stdout, re.DOTALL)
    seen, cut = json.loads(html.unescape(found))
    assert width - 20 < seen <= width
    return cut


# A page of each kind, beside all notebooks.
KINDS = (
    "index.html",
    "learn.html",
    "learn/sampler.html",
    "learn/block.html",
    "learn/tolerance.html",
    "learn/rounding.html",
    "learn/diagrams/unet.html",
    "learn/diagrams/flux.html",
    "learn/diagrams/krea2.html",
    "code/kernels/conv2d_im2col.py.html",
    "code/kernels/conv2d_winograd4.py.html",
    "code/kernels/quant/q4_k.py.html",
    "code/golden/operations/linear.py.html",
    "code/refsd/models/unet.py.html",
    "code/index.html",
    "docs/cases/README.html",
    "docs/cases/lms-history.html",
    "docs/findings/torch-amx-bf16-convolution.html",
    "docs/porting.html",
    "docs/testing.html",
    "docs/verdict.html",
    "kernels/README.html",
    "lookup/cli.html",
    "lookup/api.html",
    "lookup/cases.html",
)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_a_notebook_is_cut_off(site, tmp_path, width):
    pages = sorted((site / "notebooks").glob("*.html"))
    assert len(pages) > 9
    assert {page.name: cut for page in pages if (cut := cut_off(page, width, tmp_path))} == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_any_kind_of_page_is_cut_off(site, tmp_path, width):
    assert {name: cut for name in KINDS if (cut := cut_off(site / name, width, tmp_path))} == {}


def test_the_check_sees_what_is_cut_off(site, tmp_path):
    page = site / "notebooks" / "02_attention_to_flash.html"
    narrow = page.with_name("narrow.html")
    text = page.read_text(encoding="utf-8")
    narrow.write_text(text.replace('class="equation scroll"', 'class="math scroll"'), encoding="utf-8")
    found = cut_off(narrow, 1300, tmp_path)
    narrow.unlink()
    assert any("right edge" in one for one in found)


def test_the_check_sees_at_400_pixels_what_500_would_hide(site, tmp_path):
    text = (site / "docs" / "testing.html").read_text(encoding="utf-8")
    wide = site / "docs" / "wide.html"
    wide.write_text(text.replace("</h1>", '</h1><p style="width: 440px">wide</p>', 1), encoding="utf-8")
    assert cut_off(wide, 500, tmp_path) == []
    assert any("beyond the window" in one for one in cut_off(wide, 400, tmp_path))
    wide.unlink()
