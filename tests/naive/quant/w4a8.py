"""W4A8 and W6A8 code by code: bits as text, levels as fractions."""

from fractions import Fraction


def code(row, i, bits, columns):
    """Number i of a row of bytes. Nibbles first; of 6 bits the upper two stand behind all nibbles."""
    text = "".join(f"{byte:08b}"[::-1] for byte in row)
    upper = text[4 * columns + 2 * i : 4 * columns + 2 * i + 2] if bits == 6 else ""
    return int((text[4 * i : 4 * i + 4] + upper)[::-1], 2)


def decoded(packed, scale, table, bits):
    """-> a list of rows of int"""
    columns = packed.shape[1] * 8 // bits
    group = columns // scale.shape[1]
    rows = []
    for row, scales in zip(packed.tolist(), scale.tolist(), strict=True):
        numbers = [code(row, i, bits, columns) for i in range(columns)]
        values = [Fraction(n - 2 ** (bits - 1)) if table is None else Fraction(float(table[n])) for n in numbers]
        rows.append([max(-127, min(127, round(v * Fraction(scales[i // group])))) for i, v in enumerate(values)])
    return rows
