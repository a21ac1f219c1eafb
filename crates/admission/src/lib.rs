//! Decides what may be loaded into this machine's memory before a byte is allocated, and keeps that true until the
//! memory is free again.
//!
//! The ledger is a table of facts, a total is a sum over it, and a decision is a function of the table and of numbers
//! that were measured before. Files and readings are taken outside of it and passed in.
#![forbid(unsafe_code)]

pub mod concierge;
pub mod decision;
pub mod estimate;
pub mod eviction;
pub mod geometry;
pub mod handles;
pub mod history;
pub mod journal;
pub mod ledger;
pub mod machine;
pub mod parameters;
pub mod policy;
pub mod policy_file;
pub mod probe;
pub mod scope;
pub mod simulate;
pub mod sizing;
pub mod steward;
pub mod surroundings;
pub mod units;
