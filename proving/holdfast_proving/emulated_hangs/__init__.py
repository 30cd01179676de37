"""Jobs of hundreds of ranks that hang, emulated: a small simulation decides who blocks where, nobody else does."""
