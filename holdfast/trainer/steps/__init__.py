"""Where a script's steps come from, for scripts that do not report them: frameworks, what they restore, a count."""
