"""Functions of SD3's model with bugs that a port may have."""

from refsd.models import mmdit
from refsd.networks.bugs import replacing

_CROP = mmdit.crop_positions


def _from_the_corner(table, height, width):
    size = round(len(table) ** 0.5)
    return table.reshape(size, size, -1)[:height, :width].reshape(height * width, -1)


def _columns_first(table, height, width):
    size = round(len(table) ** 0.5)
    return _CROP(table.reshape(size, size, -1).swapaxes(0, 1).reshape(len(table), -1), height, width)


BUGS = replacing(
    mmdit,
    ("SD3's positions are cropped at the table's corner, not at its centre", "crop_positions", _from_the_corner),
    ("SD3's table of positions is read with its columns first", "crop_positions", _columns_first),
)
