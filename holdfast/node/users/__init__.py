"""Users of the node's machine: those that ranks run as, those that Holdfast made, and what each may reach."""
