"""Pure functions on tensors. Every fast form has a naive twin beside it that the tests hold it against."""
