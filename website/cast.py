"""Draw docs/engine-fails.svg: a C++ engine with one wrong line, judged: python website/cast.py

The engine is examples/exec/engine.cpp, whose RMSNorm divides by n - 1. The picture shows what the
commands printed.
"""

import html
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "engine-fails.svg"
RIGHT, WRONG = "squares / D + float(params", "squares / (D - 1) + float(params"
COLUMNS = 92
COMMANDS = (
    "c++ -O2 -std=c++17 -o engine engine.cpp",
    "refsd conform exec:./engine --cases 'rms_norm/*'",
)
_WIDTH, _HEIGHT, _LEFT, _TOP = 8.43, 19, 16, 46
_STYLE = """
.window { fill: #fbfbfd; stroke: #c9ccd4 } .dot { fill: #c9ccd4 }
text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; fill: #22242b }
.prompt { fill: #6a7080 } .red { fill: #b3201c; font-weight: 600 } .green { fill: #186a2c } .dim { fill: #626874 }
.yellow { fill: #7a5200 } .line { animation: appear 0.2s both } @keyframes appear { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { .line { animation: none } }
@media (prefers-color-scheme: dark) {
  .window { fill: #16181d; stroke: #3a3f4b } .dot { fill: #4a5060 } text { fill: #e4e6eb }
  .prompt { fill: #99a1b3 } .red { fill: #ff8a80 } .green { fill: #7ddc94 } .dim { fill: #a2a8b6 }
  .yellow { fill: #f0c060 }
}
"""


def run(folder: Path) -> list[tuple[str, Text]]:
    """Write the wrong engine to a folder, build it and judge it. -> (command, what it printed)"""
    source = (ROOT / "examples" / "exec" / "engine.cpp").read_text()
    assert source.count(RIGHT) == 1, "the example has another RMSNorm"
    (folder / "engine.cpp").write_text(source.replace(RIGHT, WRONG))
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": scripts, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    printed = []
    for command in COMMANDS:
        done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True)
        printed.append((command, Text.from_ansi(done.stdout.rstrip())))
    return printed


def lines(printed: list[tuple[str, Text]]) -> list[tuple[Text, str]]:
    """Wrap what was printed. -> (a line, "" or the class of a prompt)"""
    console = Console(width=COLUMNS, legacy_windows=False)
    wrapped = []
    for command, text in printed:
        wrapped.append((Text(f"$ {command}"), "prompt"))
        for line in text.split("\n") if text else ():
            indent = len(line.plain) - len(line.plain.lstrip())
            parts = line.wrap(console, COLUMNS - indent) if len(line) > COLUMNS else [line]
            for part in parts:
                part.rstrip()
            wrapped += [(part if i == 0 else Text(" " * indent) + part, "") for i, part in enumerate(parts)]
    return wrapped


def _class(style: Style) -> str:
    number = style.color.number if style.color else None
    return {1: "red", 2: "green", 3: "yellow"}.get(number, "dim" if style.dim else "")


def _tspans(line: Text, whole: str) -> str:
    spans, console = [], Console()
    for segment in line.render(console):
        words = html.escape(segment.text.rstrip("\n"))
        kind = whole or (_class(segment.style) if segment.style else "")
        spans.append(f'<tspan class="{kind}">{words}</tspan>' if kind else words)
    return "".join(spans)


def draw(wrapped: list[tuple[Text, str]]) -> str:
    width, height = round(COLUMNS * _WIDTH + 2 * _LEFT), _TOP + len(wrapped) * _HEIGHT + 8
    said = html.escape("\n".join(line.plain.rstrip() for line, _ in wrapped))
    rows, delay = [], 0.0
    for i, (line, kind) in enumerate(wrapped):
        delay += 0.5 if kind else 0.02
        place = f'x="{_LEFT}" y="{_TOP + i * _HEIGHT + 12}" style="animation-delay: {delay:.2f}s"'
        rows.append(f'<text class="line" xml:space="preserve" {place}>{_tspans(line, kind)}</text>')
    dots = "".join(f'<circle class="dot" cx="{22 + 18 * i}" cy="20" r="5.5"/>' for i in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="t d">\n'
        f'<title id="t">refsd judges a C++ engine and names its bug</title>\n<desc id="d">{said}</desc>\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect class="window" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9"/>{dots}\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(draw(lines(run(Path(folder)))), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
