"""The inference engine: knows tokens and bytes; knows no protocol, no HTTP and no chat."""
