"""Records of other people's engines, added up for a stream: a module each, which needs that engine alone."""
