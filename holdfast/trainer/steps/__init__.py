"""Steps of scripts that do not report them, found from frameworks, from what the script restores, or by a count."""
