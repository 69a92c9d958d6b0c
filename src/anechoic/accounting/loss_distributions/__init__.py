"""Laws of likelihood ratios: held, composed and read, always more spread out than the true ones."""
