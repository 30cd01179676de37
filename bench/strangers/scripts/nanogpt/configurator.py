# type: ignore
"""Poor man's configurator: run by exec() in the globals of train.py."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        assert not arg.startswith("--")
        print(f"Overriding config with {arg}:")
        with open(arg) as f:
            exec(f.read())  # noqa: S102
    else:
        assert arg.startswith("--")
        key, val = arg[2:].split("=")
        if key not in globals():
            raise ValueError(f"Unknown config key: {key}")
        try:
            attempt = literal_eval(val)
        except (SyntaxError, ValueError):
            attempt = val
        assert type(attempt) is type(globals()[key])
        print(f"Overriding: {key} = {attempt}")
        globals()[key] = attempt
