"""Images and audio: from a client's bytes to pixels and samples, in a process that may die."""
