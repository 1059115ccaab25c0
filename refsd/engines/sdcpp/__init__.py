"""stable-diffusion.cpp's sd-cli and sd-server."""
