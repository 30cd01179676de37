"""The evidence that agents publish for the analyzer, made from the truth."""
