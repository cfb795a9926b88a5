"""What the remaining weights become."""
