"""What things cost: prices and their time lines, and incidents and runs priced with them."""
