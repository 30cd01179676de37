# type: ignore
# overrides, run by exec()
out_dir = "out-tiny"
eval_interval = 50
batch_size = 4
block_size = 16
n_embd = 32
max_iters = 200
