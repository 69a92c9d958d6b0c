"""What must stay as it is: rows between loader and layers, parameters between releases."""
