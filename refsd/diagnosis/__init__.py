"""What is wrong with a weight file, by its values and against others. By names and shapes: weights/culprits.py."""
