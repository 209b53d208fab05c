"""What students use: their files and notebooks, their progress, and their own functions."""
