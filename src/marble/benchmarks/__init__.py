"""What `marble bench` runs: each module measures one thing against its peers and writes JSON."""
