"""Cells of the board: counts with a sign, so that they read without colour."""

from collections.abc import Iterable, Mapping
from xml.etree.ElementTree import Element

from refsd.golden import verdict
from refsd.golden.wording import counted
from refsd.reports.html.elements import element

_BAD = (verdict.FAIL, verdict.ERROR, verdict.DEVIATES)
# Sign, class of reports/html/page.css
_GOOD, _WRONG, _PARTLY, _NONE = ("\u2713", "pass"), ("\u2717", "fail"), ("~", "waived"), ("\u2013", "refused")


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts: status -> number of cases."""
    found: dict[str, int] = {}
    for of in counts:
        for status, n in of.items():
            found[status] = found.get(status, 0) + n
    return found


def judged(counts: Mapping[str, int]) -> int:
    """Return the number of cases that were not refused."""
    return sum(n for status, n in counts.items() if status != verdict.REFUSED)


def bad(counts: Mapping[str, int]) -> int:
    """Return the number of judged cases that do not conform."""
    return sum(counts.get(status, 0) for status in _BAD)


def cell(counts: Mapping[str, int], link: str = "") -> Element:
    """Make a cell: how many pass, or how many of how many do not, each with its sign; empty where none was asked.

    link: where its cases are listed
    """
    if not counts:
        return element("td", class_="none")
    ran, wrong, waived = judged(counts), bad(counts), counts.get(verdict.WAIVED, 0)
    refused = counts.get(verdict.REFUSED, 0)
    if not ran:
        sign, kind, text = *_NONE, f" {refused}"
    elif wrong:
        sign, kind, text = *_WRONG, f" {wrong} of {ran}"
    elif waived:
        sign, kind, text = *_PARTLY, f" {waived} of {ran}"
    else:
        sign, kind, text = *_GOOD, f" {ran}"
    words = title(counts)
    shown: Element | str = element("a", sign + text, href=link, title=words) if link else sign + text
    made = element("td", shown, class_=kind)
    if ran and refused:
        made.append(element("span", f" {refused} refused", class_="few"))
    return made


def title(counts: Mapping[str, int]) -> str:
    """Say counts in words: "12 cases: 9 pass, 1 fail, 2 refused"."""
    parts = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    return f"{counted(sum(counts.values()), 'case')}: {parts}"
