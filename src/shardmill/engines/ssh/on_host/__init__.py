"""What runs on a host: the agent that answers home, the workers it keeps, and what a bare Python can do."""
