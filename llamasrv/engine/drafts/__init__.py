"""Drafts: tokens tried after a sequence's last one, so that one step may yield several.

A source proposes (ngram.py), the policy takes what pays (policy.py), the batch computes the rows, and `Outputs` lets
the sequence's own sampler choose from row after row until a choice differs. Nothing here decides what a text says.
"""
