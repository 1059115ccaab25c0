"""Build HTML as a tree; all text in it is escaped when the tree is written."""

from xml.etree.ElementTree import Element, SubElement, tostring

from refsd.numerics.printable import printable

Child = Element | str


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Make an element. In attribute names a trailing "_" is dropped and other "_" become "-": class_, aria_label.

    An attribute with value None is omitted; one with True is written without a value.
    """
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    new = Element(
        tag, {name: printable(name if value is True else str(value), 10**7) for name, value in named.items()}
    )
    for child in children:
        add(new, child)
    return new


def add(parent: Element, child: Child) -> None:
    if isinstance(child, Element):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + printable(child)
    else:
        parent.text = (parent.text or "") + printable(child)


def raw(parent: Element, tag: str, text: str) -> None:
    """Add a trusted script or style, whose text is written without escaping."""
    SubElement(parent, tag).text = text


def written(root: Element) -> str:
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def listed(items: list[Child], **attributes: object) -> Element:
    return element("ul", *(element("li", item) for item in items), **attributes)
