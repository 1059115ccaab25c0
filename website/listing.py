"""Code whose lines can be linked to: #L12 is line 12 of the file. A long line goes on below its own indentation."""

import html
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective


class listing(nodes.literal_block):
    """Lines of a file; `numbers` are theirs."""


class _Listing(SphinxDirective):
    """:::{listing} FILE with :lines: 1-10,14-20 and :language:"""

    required_arguments = 1
    option_spec: ClassVar = {"language": directives.unchanged, "lines": directives.unchanged}

    def run(self):
        path = (Path(self.env.doc2path(self.env.docname)).parent / self.arguments[0]).resolve()
        self.env.note_dependency(str(path))
        text = path.read_text(encoding="utf-8").splitlines()
        ranges = [map(int, part.split("-")) for part in self.options["lines"].split(",")]
        numbers = [i for begin, end in ranges for i in range(begin, end + 1) if i <= len(text)]
        # What stands before a docstring and what follows it are parted by no blank line.
        code = "\n".join(text[i - 1] for i in numbers)
        return [listing(code, code, language=self.options["language"], numbers=numbers)]


def _draw(self, node):
    made = self.highlighter.highlight_block(node.rawsource, node["language"], location=node, stripnl=False)
    before, _, rest = made.partition("<pre>")
    inside, _, after = rest.rpartition("</pre>")
    lines = inside.removeprefix("<span></span>").split("\n")
    drawn = []
    for number, source, line in zip(node["numbers"], node.rawsource.split("\n"), lines, strict=False):
        indent = len(source) - len(source.lstrip())
        drawn.append(f'<span class="line" id="L{number}" style="--in:{indent + 4}ch">{line}</span>')
    language = html.escape(node["language"])
    self.body.append(
        f'<div class="highlight-{language} notranslate">{before}<pre>{"".join(drawn)}</pre>{after}</div>'
    )
    raise nodes.SkipNode


def setup(app):
    app.add_node(listing, html=(_draw, None))
    app.add_directive("listing", _Listing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
