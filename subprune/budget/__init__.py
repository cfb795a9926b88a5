"""Who gives up how much: goals, and the allocators that share them out over the groups."""
