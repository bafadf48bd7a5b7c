"""What is said where nothing fits: whether anything would, and in how many bytes."""
