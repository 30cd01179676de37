"""`python -m holdfast_agent`."""

from holdfast_agent.main import main

main()
