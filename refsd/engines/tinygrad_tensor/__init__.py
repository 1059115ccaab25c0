"""The engine tinygrad-tensor: tinygrad by its own code generator, and clang, at run time."""
