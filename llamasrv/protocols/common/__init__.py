"""Shared by several protocols: fields and their schemas (schema, sampling, prompts, forms, thinking, lora), and parts
of replies (wire)."""
