"""Which ranks behave alike, the task graph of one rank of each kind, and what that says about all others."""
