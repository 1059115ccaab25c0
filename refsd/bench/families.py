"""Collect all rows of the kernel benchmark."""

from refsd.bench import attention, convolution, dequantize, lokr, memory_bound, products
from refsd.bench.row import Row

ROWS: dict[str, Row] = {
    row.name: row
    for family in (convolution, attention, products, memory_bound, dequantize, lokr)
    for row in family.ROWS
}
