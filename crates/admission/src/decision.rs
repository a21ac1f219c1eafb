//! A decision that explains itself.
