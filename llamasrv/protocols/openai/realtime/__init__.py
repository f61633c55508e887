"""OpenAI's Realtime API: sessions, items and the events of a response. JSON in, JSON out.

Shapes: openai 3.57, `types/realtime/`. Knows no socket and no model.
"""
