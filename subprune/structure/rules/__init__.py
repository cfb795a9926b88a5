"""How each kind of operation ties, freezes or re-indexes units; importing a module registers its
rules.
"""
