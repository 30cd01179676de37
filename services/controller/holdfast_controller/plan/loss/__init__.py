"""What a job loses or may lose: steps, the nodes that alone hold them, and generations that a database forgot."""
