"""Judge an engine's sampler step by step, on a model that is a formula."""
