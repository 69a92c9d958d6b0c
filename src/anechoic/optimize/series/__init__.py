"""What is free is one series: C or its inverse is Toeplitz."""
