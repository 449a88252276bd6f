"""Pictures of clusters: where devices go, and the figure."""
