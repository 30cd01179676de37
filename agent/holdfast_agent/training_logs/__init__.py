"""What ranks write for people to look at (TensorBoard, Weights & Biases), read without a word from the script."""
