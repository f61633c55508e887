"""Decisions: questions about one input, answered by the log-probabilities of labels. Joins chat and engine.

questions a question as text, and a conversation cut where its questions stand
labels    what answers are called, as tokens: a tree where a label has several
work      one request with the engine: the input is computed once, its questions share steps
answers   log-probabilities become probabilities
calibration  fits of probabilities to an operator's own cases
"""
