"""What patches of other libraries share."""
