"""The proving ground: a simulated world that knows the truth, with the production decisions inside."""
