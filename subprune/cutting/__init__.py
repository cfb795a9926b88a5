"""The smaller model, its masked twin, and whether both agree."""
