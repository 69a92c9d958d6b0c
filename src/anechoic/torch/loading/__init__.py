"""Private data loaders: batches drawn by the library or formed by somebody else, fetched and counted."""
