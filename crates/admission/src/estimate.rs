//! Estimates for engines whose inside is unknown.
