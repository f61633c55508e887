"""Tools that run on the server for its clients: MCP servers, and built-in ones for files and shell commands.

Off unless the operator enables them. Knows no HTTP and no model. `child.py` and its imports also run in child
processes, hence import only the standard library.
"""
