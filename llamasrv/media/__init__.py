"""Decodes images and audio to pixels and samples, in child processes that may crash."""
