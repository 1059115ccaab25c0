"""ComfyUI behind its own API."""
