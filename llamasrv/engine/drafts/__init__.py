"""Drafts (speculation): tokens tried after a sequence's last one, so that one step may yield several.

A source proposes (ngram.py, model_source.py), the policy takes what pays (policy.py), the batch computes the rows, and
`Outputs` samples row after row until a choice differs from the draft. Drafts never change what is sampled.
"""
