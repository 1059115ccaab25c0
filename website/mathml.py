"""Equations as MathML, which browsers draw by themselves: no script, no network."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

_log = logging.getLogger(__name__)


def _mathml(node, display: str) -> str:
    """Convert an equation; warn of commands that the converter prints as they are."""
    made = convert(node.astext(), display=display)
    for command in sorted({*re.findall(r"\\[a-zA-Z]+", made)}):
        _log.warning("%s in an equation is printed as it is: MathML has no such command", command, location=node)
    return made


def _inline(self, node):
    self.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def _block(self, node):
    # Not the theme's class `math`, which clips what it holds.
    self.body.append(f'<div class="equation scroll">{_mathml(node, "block")}</div>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
