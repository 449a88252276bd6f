"""Infer tensor roles, batch dimensions, layers and forward-backward links from a trace's calls on tensors."""
