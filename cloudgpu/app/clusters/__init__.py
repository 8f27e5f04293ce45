"""Report the status of clusters, delete several clusters, and list what a killed command leaves behind."""
