"""What callers bring as inputs, as checked batches."""
