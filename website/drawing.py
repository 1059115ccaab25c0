"""Draw a graph of operations from top to bottom, in lanes, as SVG.

A node stands below what it takes, in the lane of its first argument where there is room. Lines run in the space
between rows and in the gutters between lanes, never through a node. Lines from one node share their way.
"""

import html
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

WIDTH, HEIGHT, TRACK, ROW = 150, 34, 6, 17
_LONG = 20  # characters of a label, beyond which it is written smaller
_SKIP = 3  # rows, over which an arrow is drawn as one that skips
_SMALLEST = 0.8  # of the width: below it the text is too small, and the picture scrolls
_DELAY, _SIDEWAYS, _FOREIGN = (
    1.0,
    0.7,
    1.5,
)  # costs of a place further down, of another lane, of another stream's lane


class Node(NamedTuple):
    """
    label: of the first line; below: of the second
    kind:  class of its box
    shape: of its result, written beside the line that leaves it
    link:  address, or ""
    lane:  where it must stand; None: anywhere
    layer: whose nodes keep to one lane, as `txt_attn`; ""
    """

    label: str
    below: str
    kind: str
    shape: str
    link: str = ""
    lane: int | None = None
    layer: str = ""


class Arrow(NamedTuple):
    """source and target: numbers of nodes, source first; side: True enters from the side; label: at its head"""

    source: int
    target: int
    side: bool = False
    label: str = ""


class _Place(NamedTuple):
    row: int
    lane: int


class _Way(NamedTuple):
    """An arrow's way. gutter: None leads straight down, in the lane or from one row to the next"""

    arrow: Arrow
    gutter: int | None


def places(nodes: Sequence[Node], arrows: Iterable[Arrow], lanes: int) -> list[tuple[int, int]]:
    """Return the row and the lane of each node; nodes come after what they take.

    A node that takes nothing begins a stream, which keeps its lane free of other streams where it can. What
    follows a node over two streams goes back to the stream that its layer began in.
    """
    entering: dict[int, list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        entering[arrow.target].append(arrow)
    found: list[tuple[int, int]] = []
    stream: list[int] = []
    owner: dict[int, int] = {}  # lane -> its stream
    begun: dict[str, int] = {}  # layer -> its first node
    for i, node in enumerate(nodes):
        above = [arrow.source for arrow in entering[i]]
        main = [arrow.source for arrow in entering[i] if not arrow.side] or above
        before = main[0] if main else None
        joined = before is not None and len({stream[one.source] for one in entering[before] if not one.side}) > 1
        if joined:
            before = begun.get(node.layer, before)
        first = 1 + max((found[j][0] for j in above), default=-1)
        wanted = 0 if before is None else found[before][1]
        stream.append(i if before is None else stream[before])
        _, row, lane = min(
            (
                _DELAY * down
                + _SIDEWAYS * abs(lane - wanted)
                + _FOREIGN * (owner.get(lane, stream[i]) != stream[i]),
                first + down,
                lane,
            )
            for down in range(len(nodes) + 1)
            for lane in (range(lanes) if node.lane is None else [node.lane])
            if (first + down, lane) not in found
        )
        owner.setdefault(lane, stream[i])
        if node.layer:
            begun.setdefault(node.layer, i)
        found.append((row, lane))
    return found


def draw(nodes: Sequence[Node], arrows: Sequence[Arrow], words: str, lanes: int = 3) -> str:
    """Return the graph as SVG. words: what a reader who sees no picture is told"""
    at = [_Place(*place) for place in places(nodes, arrows, lanes)]
    ways = [_Way(arrow, _gutter(arrow, at)) for arrow in arrows]
    count = 1 + max(place.lane for place in at)
    tracks = _tracks(ways, at)
    channels = _channels(ways, at)
    x, left = [], 4.0
    for lane in range(count + 1):
        left += 8 + TRACK * len(set(tracks[lane].values()))
        x.append(left)
        left += WIDTH
    y, top = [], 4.0
    for row in range(1 + max(place.row for place in at)):
        y.append(top)
        top += HEIGHT + ROW + 5 * len(channels[row])
    width, height = x[count] + 14, top
    drawn = [line for way in ways for line in _line(way, nodes, ways, at, x, y, tracks, channels)]
    for node, place in zip(nodes, at, strict=True):
        drawn.append(_box(node, x[place.lane], y[place.row]))
    size = f"width:{width:.0f}px;min-width:{_SMALLEST * width:.0f}px"
    return (
        f'<svg class="diagram" viewBox="0 0 {width:.0f} {height:.0f}" style="{size}" role="img" '
        f'aria-label="{html.escape(words)}">{"".join(drawn)}</svg>'
    )


def _gutter(arrow: Arrow, at: list[_Place]) -> int | None:
    """Return the gutter in which an arrow runs; gutter i is left of lane i."""
    source, target = at[arrow.source], at[arrow.target]
    if not arrow.side:
        between = {place.row for place in at if place.lane == source.lane and source.row < place.row < target.row}
        if source.lane == target.lane and not between:
            return None
        if target.row == source.row + 1:
            return None
    return target.lane + (1 if source.lane > target.lane or (arrow.side and source.lane == target.lane) else 0)


def _tracks(ways: list[_Way], at: list[_Place]) -> dict[int, dict[int, int]]:
    """Give each source a track in each gutter, so that lines of two do not meet. -> gutter -> source -> track"""
    spans: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for arrow, gutter in ways:
        if gutter is not None:
            begin, end = spans[gutter].get(arrow.source, (at[arrow.source].row, 0))
            spans[gutter][arrow.source] = begin, max(end, at[arrow.target].row)
    tracks: dict[int, dict[int, int]] = defaultdict(dict)
    for gutter, own in spans.items():
        ends: list[int] = []
        for source, (begin, end) in sorted(own.items(), key=lambda item: item[1]):
            i = next((i for i, last in enumerate(ends) if last < begin), len(ends))
            ends[i:] = [end, *ends[i + 1 :]]
            tracks[gutter][source] = i
    return tracks


def _channels(ways: list[_Way], at: list[_Place]) -> dict[int, list[int]]:
    """Return the sources whose lines run sideways below each row."""
    channels: dict[int, list[int]] = defaultdict(list)
    for arrow, gutter in ways:
        source, target = at[arrow.source], at[arrow.target]
        if gutter is not None or source.lane != target.lane:
            rows = [source.row] if gutter is None or arrow.side else [source.row, target.row - 1]
            for row in rows:
                if arrow.source not in channels[row]:
                    channels[row].append(arrow.source)
    return channels


def _line(way, nodes, ways, at, x, y, tracks, channels) -> list[str]:
    """Return an arrow's line, its label, and the shape of what flows."""
    arrow, gutter = way
    source, target = at[arrow.source], at[arrow.target]
    out, down = x[source.lane] + WIDTH / 2, y[source.row] + HEIGHT
    sideways = lambda row: y[row] + HEIGHT + ROW - 4 + 5 * channels[row].index(arrow.source)
    entering = [one.arrow for one in ways if one.arrow.target == arrow.target and not one.arrow.side]
    entering.sort(key=lambda one: (at[one.source].lane, -one.source))
    into = x[target.lane] + WIDTH / 2
    if not arrow.side and len(entering) > 1:
        into += (entering.index(arrow) - (len(entering) - 1) / 2) * min(40, WIDTH / len(entering))
    if gutter is None and (source.lane == target.lane):
        path = f"M{into:.0f} {down:.0f}V{y[target.row] - 5:.0f}"
        head = (into, y[target.row], "down")
    elif gutter is None:
        path = f"M{out:.0f} {down:.0f}V{sideways(source.row):.0f}H{into:.0f}V{y[target.row] - 5:.0f}"
        head = (into, y[target.row], "down")
    else:
        track = x[gutter] - 7 - TRACK * tracks[gutter][arrow.source]
        path = f"M{out:.0f} {down:.0f}V{sideways(source.row):.0f}H{track:.0f}"
        if arrow.side:
            own = [one.arrow for one in ways if one.arrow.target == arrow.target and one.arrow.side]
            level = y[target.row] + HEIGHT * (1 + own.index(arrow)) / (1 + len(own))
            right = gutter > target.lane
            edge = x[target.lane] + (WIDTH if right else 0)
            path += f"V{level:.0f}H{edge + (5 if right else -5):.0f}"
            head = (edge, level, "left" if right else "right")
        else:
            path += f"V{sideways(target.row - 1):.0f}H{into:.0f}V{y[target.row] - 5:.0f}"
            head = (into, y[target.row], "down")
    title = f"{nodes[arrow.source].label} {nodes[arrow.source].shape} to {nodes[arrow.target].label}"
    if arrow.label:
        title += f", as {arrow.label}"
    kind = "flow side" if arrow.side else "flow skip" if target.row - source.row > _SKIP else "flow"
    return [f'<path class="{kind}" d="{path}"><title>{html.escape(title)}</title></path>{_head(*head)}']


def _head(x: float, y: float, towards: str) -> str:
    corners = {"down": ((-3.5, -6), (3.5, -6)), "left": ((6, -3.5), (6, 3.5)), "right": ((-6, -3.5), (-6, 3.5))}
    points = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in ((0, 0), *corners[towards]))
    return f'<polygon class="head" points="{points}"/>'


def _box(node: Node, x: float, y: float) -> str:
    middle = x + WIDTH / 2
    size = "long" if len(node.label) > _LONG else ""
    lines = [(_short(node.label, 29), size, y + (14 if node.below else 21))]
    if node.below:
        lines.append((_short(node.below, 24), "below", y + 28))
    text = "".join(
        f'<text class="{kind}" x="{middle:.0f}" y="{line:.0f}">{html.escape(words)}</text>'
        for words, kind, line in lines
    )
    shape = f'<text class="shape" x="{middle + 4:.0f}" y="{y + HEIGHT + 11:.0f}">{html.escape(node.shape)}</text>'
    box = (
        f'<rect class="{node.kind}" x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>{text}'
        f"<title>{html.escape(f'{node.label} {node.below}'.strip())}</title>"
    )
    return (f'<a href="{html.escape(node.link)}">{box}</a>' if node.link else f"<g>{box}</g>") + shape


def _short(name: str, room: int) -> str:
    return name if len(name) <= room else "..." + name[-room + 3 :]
