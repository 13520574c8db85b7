"""What training maximises, as pure functions of tensors."""
