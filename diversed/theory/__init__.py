"""What the paper claims, as functions of numbers."""
