"""TLS between processes: certificates, contexts, and which addresses need it."""
