"""OpenAI's Realtime API: sessions, items and the events of a response. JSON in, JSON out.

Shapes: those of the package openai 3.57, in its types for realtime. Knows no socket and no model.
"""
