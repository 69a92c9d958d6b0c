def tables(r): return ""
