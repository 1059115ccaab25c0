"""The versioned corpus: which cases a version has, by digest, and the profiles that an engine can be held to."""
