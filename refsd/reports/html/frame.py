"""The frame of a page that needs no network and no other file: its head, heading, links to its parts, and body."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from refsd.reports.html.elements import element, raw, written

_HERE = Path(__file__).parent


def page(title: str, fine: bool, header: Sequence[Element], parts: Sequence[Element], script: str = "") -> str:
    """Write a page.

    title:  its heading, the verdict
    fine:   whether the verdict is good
    header: elements between the heading and the parts
    script: a file of this folder; "" for a page without a script
    """
    style = (_HERE / "page.css").read_text("utf-8")
    code = (_HERE / script).read_text("utf-8") if script else ""
    heading = element("h1", title[0].upper() + title[1:], class_="fine" if fine else "bad")
    main = element("main", *parts, id="main")
    return document(f"refsd: {title}", style, code, element("header", heading, *header), main)


def document(title: str, style: str, code: str, *parts: Element) -> str:
    """Write a document, which loads nothing and runs no script but its own.

    style, code: CSS and JavaScript
    parts:       of the body; one has the id "main"
    """
    head = element("head", element("meta", charset="utf-8"))
    head.append(element("meta", name="viewport", content="width=device-width, initial-scale=1"))
    # The policy holds even if text from an engine should escape the escaping.
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}"
    policy += f"; script-src {_hash(code)}" if code else ""
    head.append(element("meta", http_equiv="Content-Security-Policy", content=policy))
    head.append(element("title", title))
    raw(head, "style", style)
    body = element("body", element("a", "Skip to the report", href="#main", class_="skip"), *parts)
    if code:
        raw(body, "script", code)
    return written(element("html", head, body, lang="en"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
