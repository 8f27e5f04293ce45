"""Results as text and as JSON documents."""
