"""Local training: pseudo-gradients of units, and modules run under other weights than their own."""
