"""`holdfast doctor`: what was read of a cluster (`facts`), what is wrong with it (`findings`), and the reading."""
