//! The policy on disk.
