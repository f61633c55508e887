"""What several protocols use: fields and their schemas (schema, sampling, prompts, forms, thinking, lora), and what
replies are made of (collect, wire)."""
