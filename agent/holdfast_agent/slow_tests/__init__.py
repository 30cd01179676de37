"""What a node does about a job that got slow: it tells how its ranks spend their time, holds them, and tests."""
