"""Relays as the master sees them, and the peers behind them."""
