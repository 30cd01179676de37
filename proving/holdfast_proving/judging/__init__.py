"""What a policy made of the truth: complaints, lost time, the scoreboard."""
