"""Draw a badge: an SVG with the profile on the left and whether it is met on the right."""

from xml.etree.ElementTree import tostring

from refsd.corpus.met import standing
from refsd.corpus.versions import profile_names
from refsd.golden import verdict
from refsd.golden.report import Report
from refsd.reports.html.elements import element

# Pixels for a character at 11 pixels: the text is fitted to it, whatever the font.
_WIDE = 6.6
_PAD = 7
_HIGH = 20
_GREEN, _RED, _GREY = "#1a7f37", "#b42318", "#484f58"


def badge(report: Report, engine: str = "") -> str:
    """Draw the badge of one engine of a report, or of all of them together. -> SVG

    Raises BadInput for a profile that this refsd does not know.
    """
    good, text = _outcome(report, engine)
    left = f"refsd {report.profile}".strip()
    widths = [len(part) * _WIDE + 2 * _PAD for part in (left, text)]
    label = f"{left}: {text}"
    svg = element(
        "svg",
        element("title", label),
        xmlns="http://www.w3.org/2000/svg",
        width=f"{sum(widths):.0f}",
        height=_HIGH,
        role="img",
        aria_label=label,
    )
    x = 0.0
    for part, width, colour in zip((left, text), widths, (_GREY, _GREEN if good else _RED), strict=True):
        svg.append(element("rect", x=f"{x:.1f}", width=f"{width:.1f}", height=_HIGH, fill=colour))
        words = element("text", part, x=f"{x + _PAD:.1f}", y=14, fill="#ffffff", font_size=11)
        words.set("font-family", "Verdana, DejaVu Sans, sans-serif")
        words.set("textLength", f"{width - 2 * _PAD:.1f}")
        svg.append(words)
        x += width
    return tostring(svg, encoding="unicode") + "\n"


def _outcome(report: Report, engine: str) -> tuple[bool, str]:
    """Return whether the badge is green, and its words."""
    engines = [engine] if engine else list(report.engines)
    results = [r for name in engines for r in report.of(name)]
    bad = sum(not r.conforms for r in results)
    ran = sum(r.status != verdict.REFUSED for r in results)
    if report.partial:
        return False, "interrupted"
    if bad or not ran:
        return False, f"{bad} of {ran} fail" if ran else "no case judged"
    if not report.profile:
        return True, f"{ran} conform"
    names = profile_names(report.profile)
    passed = [len(standing(report.of(name), names).get(verdict.PASS, [])) for name in engines]
    met = min(passed) == len(names)
    return met, "met" if met else f"not met: {min(passed)} of {len(names)}"
