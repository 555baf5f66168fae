"""See why: pictures on disk (`marble heatmap`) and a viewer in the browser (`marble view`)."""
