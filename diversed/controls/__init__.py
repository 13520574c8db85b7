"""What the learnt verifier is compared with: heads that see less, and weights by hand."""
