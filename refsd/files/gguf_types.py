"""Table of ggml's tensor types, by their number in a GGUF file."""

from typing import NamedTuple


class GGMLType(NamedTuple):
    name: str
    block: int  # elements per block
    bytes: int  # per block


# Number in the file -> type. Source: ggml.h, enum ggml_type; ggml-common.h for q8_1: gguf-py counts 40 bytes.
TYPES = {
    0: GGMLType("f32", 1, 4),
    1: GGMLType("f16", 1, 2),
    2: GGMLType("q4_0", 32, 18),
    3: GGMLType("q4_1", 32, 20),
    6: GGMLType("q5_0", 32, 22),
    7: GGMLType("q5_1", 32, 24),
    8: GGMLType("q8_0", 32, 34),
    9: GGMLType("q8_1", 32, 36),
    10: GGMLType("q2_k", 256, 84),
    11: GGMLType("q3_k", 256, 110),
    12: GGMLType("q4_k", 256, 144),
    13: GGMLType("q5_k", 256, 176),
    14: GGMLType("q6_k", 256, 210),
    15: GGMLType("q8_k", 256, 292),
    16: GGMLType("iq2_xxs", 256, 66),
    17: GGMLType("iq2_xs", 256, 74),
    18: GGMLType("iq3_xxs", 256, 98),
    19: GGMLType("iq1_s", 256, 50),
    20: GGMLType("iq4_nl", 32, 18),
    21: GGMLType("iq3_s", 256, 110),
    22: GGMLType("iq2_s", 256, 82),
    23: GGMLType("iq4_xs", 256, 136),
    24: GGMLType("i8", 1, 1),
    25: GGMLType("i16", 1, 2),
    26: GGMLType("i32", 1, 4),
    27: GGMLType("i64", 1, 8),
    28: GGMLType("f64", 1, 8),
    29: GGMLType("iq1_m", 256, 56),
    30: GGMLType("bf16", 1, 2),
    34: GGMLType("tq1_0", 256, 54),
    35: GGMLType("tq2_0", 256, 66),
    39: GGMLType("mxfp4", 32, 17),
    40: GGMLType("nvfp4", 64, 36),
    41: GGMLType("q1_0", 128, 18),
    42: GGMLType("q2_0", 64, 18),
}
