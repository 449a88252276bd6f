"""What calls on tensors tell: roles, batch dimensions, layers, which backward operator belongs to which forward one."""
