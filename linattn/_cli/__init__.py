"""What the command ``linattn`` does."""
