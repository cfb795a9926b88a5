"""Files: models with their plans, exports, and writing that leaves nothing half done."""
