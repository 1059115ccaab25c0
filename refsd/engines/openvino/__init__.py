"""OpenVINO as an engine."""
