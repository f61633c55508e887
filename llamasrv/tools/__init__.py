"""Tools that run on the server for its clients: MCP servers, and a few of our own for files and shell commands.

Off until the operator names them. Knows no HTTP and no model. `child.py` and what it imports also run in processes of
their own, so they need nothing but the standard library.
"""
