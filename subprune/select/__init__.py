"""Which units stay: the methods and what they are made of."""
