"""`python -m holdfast_vault.disk VAULT`: writes one step of a node's ranks to the disk; started by the vault VAULT."""

from holdfast.daemon.quick_imports import quick_imports

with quick_imports():
    from holdfast_vault.disk.persist_writer import main

main()
