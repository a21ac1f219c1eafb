//! The table of facts.
