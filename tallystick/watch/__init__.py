"""What processes tell, made visible: metrics while they run, a timeline afterwards."""
