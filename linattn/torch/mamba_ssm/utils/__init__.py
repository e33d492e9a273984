"""Generation, and files of the Hugging Face hub."""
