"""Steps of processes that a rank spawns, by `torch.multiprocessing.spawn` or `multiprocessing`."""
