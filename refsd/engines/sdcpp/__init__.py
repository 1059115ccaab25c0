"""Judge stable-diffusion.cpp through its programs sd-cli and sd-server."""
