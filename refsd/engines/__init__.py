"""The engines that refsd can judge, a folder each, and the reference itself."""
