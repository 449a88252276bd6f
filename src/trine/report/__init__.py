"""Reports: one self-contained HTML file that opens from disk, made from a result."""
