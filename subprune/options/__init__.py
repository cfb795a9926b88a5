"""What a call of `prune`, `forecast` or `guarantees` asks for: every option is declared once, here."""
