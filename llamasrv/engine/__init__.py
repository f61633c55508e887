"""The inference engine. Knows tokens and bytes; knows no protocol, no HTTP and no chat."""
