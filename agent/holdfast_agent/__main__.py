"""`python -m holdfast_agent`."""

from holdfast.daemon.quick_imports import quick_imports

with quick_imports():
    from holdfast_agent.main import main

main()
