"""What was sent, what was received, what is lost, and when to send it again."""
