"""Logs that ranks write for people (TensorBoard, Weights & Biases), read without changes to the script."""
