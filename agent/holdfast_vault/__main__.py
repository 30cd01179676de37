"""`python -m holdfast_vault --state-dir DIR`: the vault of one node."""

from holdfast.daemon.quick_imports import quick_imports

with quick_imports():
    from holdfast_vault.main import main

main()
