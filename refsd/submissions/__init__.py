"""Submissions: a conformance run in one file, from which somebody else can give every verdict again."""
