# type: ignore
"""Calls torchrun itself, as scripts for one machine do; the launcher outside sees one process."""

from torch.distributed.run import main

if __name__ == "__main__":
    main(["--standalone", "--nproc-per-node=2", "inner.py"])
