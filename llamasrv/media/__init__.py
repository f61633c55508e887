"""Pictures and sounds: from the bytes that a client sent to pixels and samples, in a process that may die."""
