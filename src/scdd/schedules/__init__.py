"""Noise schedules: γ_t and ρ_t of `eq:marginal`, value and derivative together."""
