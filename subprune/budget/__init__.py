"""Who gives up how much: goals, and the allocators that divide them among the groups."""
