"""Which links a message crosses: policies, shortest paths, closed forms of Clos fabrics, many routes at once."""
