"""The evaluation of the paper that subprune grew from: grids of prunings, training and fine-tuning,
tables and figures next to the paper's. It uses subprune; subprune does not know it.
"""
