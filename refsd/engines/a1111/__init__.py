"""A1111 and the servers that speak as it does: Forge, SD.Next, sdkit, sd-server."""
