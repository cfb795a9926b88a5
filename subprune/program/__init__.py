"""The caller's model as a list of operations: recorded once, lent and given back, replayed from any
point.
"""
