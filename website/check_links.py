"""Follow the links of built pages: every file and anchor must exist, every page be reached from the front page."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Pages that Sphinx makes and the theme reaches by its search field.
UNLINKED = {"search.html", "genindex.html"}


class _Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.anchors |= {told[name] for name in ("id", "name") if told.get(name)}
        self.links += [told[name] for name in ("href", "src") if told.get(name)]


def wrong_links(out: Path) -> list[str]:
    """Return a line for each link that leads nowhere, and for each page that no link leads to."""
    pages = {
        path.relative_to(out).as_posix(): _Page(path.read_text("utf-8"))
        for path in out.rglob("*.html")
        if "_static" not in path.parts
    }
    wrong, reached, ahead = [], {"index.html"}, ["index.html"]
    leads: dict[str, set[str]] = {}
    for name, page in pages.items():
        leads[name] = set()
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            path = (out / name).parent / unquote(to.path) if to.path else out / name
            there = path.resolve()
            if not there.exists():
                wrong.append(f"{name}: {link}: no such file")
                continue
            inside = there.relative_to(out.resolve()).as_posix()
            leads[name].add(inside)
            if to.fragment and inside in pages and unquote(to.fragment) not in pages[inside].anchors:
                wrong.append(f"{name}: {link}: no such anchor")
    while ahead:
        for target in leads.get(ahead.pop(), set()) - reached:
            reached.add(target)
            ahead.append(target)
    wrong += [f"{name}: no link leads to it" for name in sorted(pages.keys() - reached - UNLINKED)]
    return wrong
