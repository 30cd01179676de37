"""Changes of the database's schema: migrations, and sessions that hold them up."""
